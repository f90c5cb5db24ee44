"""What every backend keeps to: the scripted one of batch_agent.testing, and HTTP in front of the simulated engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.connect import connect
from batch_agent.core.interfaces import Backend
from batch_agent.core.messages import Assistant, ToolResult, ToolResults, User
from batch_agent.core.prompt import Prompt, ToolSpec
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, Sampling, TextDelta
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, call, say

LOOK = ToolSpec("look", "", {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]})


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script()) as server:
        yield server


@pytest.fixture(params=["scripted", "http"])
async def backend(request: pytest.FixtureRequest, sim: SimServer) -> AsyncIterator[Backend]:
    if request.param == "http":
        opened = await connect(sim.url, None, uses_tools=True, notify=lambda text: None)
    else:
        opened = ScriptedBackend(as_the_sim_does)
    yield opened
    await opened.aclose()


async def as_the_sim_does(request: Request) -> Answer:
    await asyncio.sleep(0.001)
    text = request.messages[0].text if isinstance(request.messages[0], User) else ""
    if "fault" in text:
        return BackendError(ErrorKind.SERVER, "simulated failure with status 500")
    if request.prompt.tools and request.may_call_tools and len(request.messages) == 1:
        return call("look", key="key-1")
    return say("Hello")


def ask(backend: Backend, directive: dict[str, object], *, tools: tuple[ToolSpec, ...] = ()) -> Request:
    text = f"Hi [[sim: {json.dumps(directive)}]]" if directive else "Hi"
    return Request(Prompt("Be brief.", tools), (User(text),), backend.traits.model, Sampling())


async def deltas_of(backend: Backend, request: Request) -> list[Delta]:
    async with backend.stream(request) as deltas:
        return [delta async for delta in deltas]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_ends_with_one_finished_delta(backend: Backend, stream: bool) -> None:
    deltas = await deltas_of(backend, replace(ask(backend, {"text": "Hello"}), stream=stream))
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello"
    assert [isinstance(delta, Finished) for delta in deltas] == [False] * (len(deltas) - 1) + [True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_comes_whole_and_its_result_can_be_sent_back(backend: Backend, stream: bool) -> None:
    request = replace(ask(backend, {}, tools=(LOOK,)), stream=stream)
    *_, asked, finished = await deltas_of(backend, request)
    assert isinstance(asked, CallDelta)
    assert asked.call.name == "look"
    assert "key" in json.loads(asked.call.arguments)
    assert isinstance(finished, Finished)
    assert finished.reason == "calls"
    told = (*request.messages, Assistant("", (asked.call,)), ToolResults((ToolResult(asked.call, "found"),)))
    *_, finished = await deltas_of(backend, replace(request, messages=told))
    assert isinstance(finished, Finished)
    assert finished.reason == "stop"


async def test_tools_that_may_not_be_called_are_not_called(backend: Backend) -> None:
    request = replace(ask(backend, {}, tools=(LOOK,)), may_call_tools=False)
    assert not [delta for delta in await deltas_of(backend, request) if isinstance(delta, CallDelta)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_a_backend_error_and_the_next_request_goes_well(backend: Backend, stream: bool) -> None:
    with pytest.raises(BackendError) as raised:
        await deltas_of(backend, replace(ask(backend, {"fault": "500"}), stream=stream))
    assert raised.value.kind is ErrorKind.SERVER
    assert await deltas_of(backend, ask(backend, {"text": "Hello"}))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_that_is_left_early_harms_nobody(backend: Backend, stream: bool) -> None:
    request = replace(ask(backend, {"text": "Hello"}), stream=stream)
    async with backend.stream(request) as deltas:
        await anext(deltas)
    async with backend.stream(request):
        pass
    assert await deltas_of(backend, request)


async def test_requests_may_be_cancelled_while_others_run(backend: Backend) -> None:
    request = ask(backend, {"text": "Hello"})
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(deltas_of(backend, request)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in running[::2]:
            task.cancel()
    assert all(task.cancelled() for task in running[::2])
    assert all(isinstance(task.result()[-1], Finished) for task in running[1::2])
