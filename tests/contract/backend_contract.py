"""What every backend keeps to. Run here by those that need no engine, and in tests/live by real engines."""

import asyncio
import json
from dataclasses import dataclass, replace

import pytest

from batch_agent import BackendError
from batch_agent.core.messages import Assistant, ToolResult, ToolResults, ToolSpec
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, TextDelta

SEARCH = ToolSpec(
    "search", "Search the web.", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend, and requests that make it do what is looked at."""

    backend: Backend
    speaks: Request
    """Is answered with some text, with no tools on offer."""
    fails: Request
    """Is refused, always."""
    calls: Request | None
    """Makes the model call `search`; None where tools are not called natively."""


async def deltas_of(backend: Backend, request: Request) -> list[Delta]:
    async with backend.stream(request) as deltas:
        return [delta async for delta in deltas]


class BackendContract:
    @streamed_or_not
    async def test_an_answer_ends_with_one_finished_delta(self, subject: Subject, stream: bool) -> None:
        deltas = await deltas_of(subject.backend, replace(subject.speaks, stream=stream))
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)).strip()
        assert [isinstance(delta, Finished) for delta in deltas] == [False] * (len(deltas) - 1) + [True]

    @streamed_or_not
    async def test_a_tool_call_is_delivered_whole_and_its_result_can_be_sent_back(
        self, subject: Subject, stream: bool
    ) -> None:
        if subject.calls is None:
            assert not subject.backend.traits.native_tools
            return
        request = replace(subject.calls, stream=stream)
        deltas = await deltas_of(subject.backend, request)
        asked = [delta.call for delta in deltas if isinstance(delta, CallDelta)]
        assert asked
        assert {call.name for call in asked} == {"search"}
        assert all(isinstance(json.loads(call.arguments)["query"], str) for call in asked)
        assert isinstance(deltas[-1], Finished)
        assert deltas[-1].reason == "calls"
        results = ToolResults(tuple(ToolResult(call, "Nothing was found.") for call in asked))
        told = (*request.messages, Assistant("", tuple(asked)), results)
        *_, finished = await deltas_of(subject.backend, replace(request, messages=told, may_call_tools=False))
        assert isinstance(finished, Finished)

    @streamed_or_not
    async def test_a_failure_is_a_backend_error_and_the_next_request_succeeds(
        self, subject: Subject, stream: bool
    ) -> None:
        with pytest.raises(BackendError):
            await deltas_of(subject.backend, replace(subject.fails, stream=stream))
        assert await deltas_of(subject.backend, subject.speaks)

    @streamed_or_not
    async def test_an_abandoned_request_does_not_affect_the_next(self, subject: Subject, stream: bool) -> None:
        request = replace(subject.speaks, stream=stream)
        async with subject.backend.stream(request) as deltas:
            await anext(deltas)
        async with subject.backend.stream(request):
            pass
        assert await deltas_of(subject.backend, request)

    async def test_cancelling_one_request_does_not_affect_concurrent_requests(self, subject: Subject) -> None:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(deltas_of(subject.backend, subject.speaks)) for _ in range(12)]
            await asyncio.sleep(0)
            for task in running[::2]:
                task.cancel()
        assert all(task.cancelled() for task in running[::2])
        assert all(isinstance(task.result()[-1], Finished) for task in running[1::2])

    async def test_leave_may_be_called_for_any_agent_at_any_time(self, subject: Subject) -> None:
        await deltas_of(subject.backend, replace(subject.speaks, agent="a1"))
        for agent in ("a1", "a1", "a stranger"):
            await subject.backend.leave(agent)
