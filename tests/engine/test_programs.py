"""Agents whose work is done by programs: their requests are those of any agent, their work is one turn of it."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import now
from tests.support.event_list import EventList
from tests.support.program_agents import LOOK, FakeRuntime, calls_then, run_programs, tool_loop

from batch_agent import BackendError, ErrorKind, RunStopped
from batch_agent.core.events import CallsEnded, CallsStarted, TurnEnded
from batch_agent.core.messages import Assistant, ToolCall, ToolResults, ToolSpec, User
from batch_agent.core.options import Retry
from batch_agent.core.program_runtime import CompletionRequest, CompletionService, ProgramFailed, ProgramResult
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.results import AgentResult, Changes, FileChange
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import Answer, ScriptedBackend, say


class Verdict(BaseModel):
    good: bool


async def test_a_program_answers_and_its_result_has_turns_and_calls() -> None:
    log = EventList()
    runtime = FakeRuntime(tool_loop)
    [result] = await run_programs(runtime, ScriptedBackend(calls_then("done", 2), seconds=1.0), ["it"], events=log)
    assert result.output == "done"
    assert (result.turns, result.usage) == (3, Usage(40, 10, 15))
    assert [(call.name, call.ok, call.seconds) for call in result.tool_calls] == [("look", True, 1.0)] * 2
    assert [type(message) for message in result.transcript] == [
        User,
        Assistant,
        ToolResults,
        Assistant,
        ToolResults,
        Assistant,
    ]
    assert [event.turn for event in log.events if isinstance(event, TurnEnded)] == [1, 2, 3]
    counted = Counter(type(event) for event in log.events)
    assert counted[CallsStarted] == counted[CallsEnded] == 2
    assert runtime.closed == ["agent-0"]


async def test_a_programs_own_report_overrides_what_its_requests_show() -> None:
    changes = Changes((FileChange("a.py", "modified", 1, 1),), "--- a\n+++ b\n")

    async def program(service: CompletionService, agent: str, text: str) -> ProgramResult:
        await service.complete(agent, CompletionRequest((User(text),)))
        return ProgramResult("done", changes, (User("hello"), Assistant("done")))

    [result] = await run_programs(FakeRuntime(program), ScriptedBackend(calls_then("x", 0)), ["it"])
    assert result.changes == changes
    assert [message.text for message in result.transcript if isinstance(message, User)] == ["hello"]
    assert result.usage == Usage(20, 10, 5)


BETA = ToolSpec("beta", "Another one", LOOK.parameters)
NAMED = CompletionRequest((User("Go."),), tools=(LOOK, BETA), tool_choice="required", tool_name="beta")


async def asked_for_beta(
    backend: ScriptedBackend, asked: CompletionRequest = NAMED, *, action_mode: bool = False
) -> AgentResult:
    """What a program hears that asks once."""

    async def program(service: CompletionService, agent: str, text: str) -> str:
        reply = await service.complete(agent, asked)
        return ",".join(call.name for call in reply.calls) or reply.text

    [result] = await run_programs(FakeRuntime(program), backend, ["it"], action_mode=action_mode)
    return result


def calling(*names: str) -> Reply:
    calls = tuple(ToolCall(f"c{number}", name, '{"at": "x"}') for number, name in enumerate(names))
    return Reply("", "calls", Usage(10, 0, 5), calls)


async def test_a_forced_tool_is_requested_by_name_with_all_tools_in_the_prompt() -> None:
    backend = ScriptedBackend(lambda request: calling(request.must_call or "look"))
    assert (await asked_for_beta(backend)).output == "beta"
    [request] = backend.requests
    assert [tool.name for tool in request.prompt.tools] == ["look", "beta"]
    assert (await asked_for_beta(backend, replace(NAMED, tool_name=""))).output == "look"
    assert backend.requests[-1].must_call == ""
    assert (await asked_for_beta(backend, replace(NAMED, tool_name="", tool_choice="auto"))).output == "look"
    assert backend.requests[-1].must_call is None


async def test_a_server_that_ignores_the_forced_tool_is_offered_only_that_tool() -> None:
    backend = ScriptedBackend(lambda request: calling(request.prompt.tools[0].name))
    result = await asked_for_beta(backend)
    assert (result.output, result.usage) == ("beta", Usage(20, 0, 10))  # the first reply was paid, too
    assert [[tool.name for tool in request.prompt.tools] for request in backend.requests] == [
        ["look", "beta"],
        ["beta"],
    ]
    assert backend.requests[1].must_call == ""


async def test_a_server_that_rejects_the_forced_tool_is_offered_only_that_tool() -> None:
    def script(request: Request) -> Answer:
        return calling("beta") if request.must_call is None else BackendError(ErrorKind.BAD_REQUEST, "tool_choice?")

    backend = ScriptedBackend(script)
    assert (await asked_for_beta(backend)).output == "beta"
    assert [tool.name for tool in backend.requests[1].prompt.tools] == ["beta"]


async def test_a_model_that_never_calls_the_forced_tool_is_an_error() -> None:
    backend = ScriptedBackend(lambda request: say("I would rather not."))
    result = await asked_for_beta(backend)
    assert result.error is not None
    assert "did not call 'beta'" in result.error.message
    assert len(backend.requests) == 2


async def test_forbidden_tool_calls_are_left_out_of_the_reply() -> None:
    both = ScriptedBackend(lambda request: calling("look", "beta", "beta"))
    assert (await asked_for_beta(both)).output == "beta,beta"
    assert (await asked_for_beta(both, replace(NAMED, single_call=True))).output == "beta"
    any_tool = replace(NAMED, tool_choice="auto", tool_name="", single_call=True)
    assert (await asked_for_beta(both, any_tool)).output == "look"


async def test_a_truncated_reply_has_its_finish_reason() -> None:
    backend = ScriptedBackend(lambda request: Reply("I wou", "length", Usage(1, 0, 1)))
    assert (await asked_for_beta(backend)).output == "I wou"
    assert len(backend.requests) == 1


async def test_without_native_tools_a_forced_tool_is_enforced_by_a_schema() -> None:
    backend = ScriptedBackend(lambda request: say('{"tool": "beta", "arguments": {"at": "x"}}'))
    assert (await asked_for_beta(backend, action_mode=True)).output == "beta"
    schema = str(backend.requests[0].answer_schema)
    assert "'beta'" in schema
    assert "'look'" not in schema
    assert "final" not in schema


async def test_a_program_that_keeps_requesting_a_failing_server_is_cancelled() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        while True:
            with suppress(BackendError):
                return (await service.complete(agent, CompletionRequest((User(text),)))).text
            await asyncio.sleep(2)

    backend = ScriptedBackend(lambda request: BackendError(ErrorKind.SERVER, "broken"))
    [result] = await run_programs(FakeRuntime(program), backend, ["it"], retry=Retry(max_retries=0))
    assert result.error is not None
    assert (result.error.kind, len(backend.requests)) == (ErrorKind.SERVER, 3)


@pytest.mark.slow
async def test_programs_hold_no_slot_between_requests() -> None:
    backend = ScriptedBackend(calls_then("done"), seconds=1.0)
    runtime = FakeRuntime(lambda service, agent, text: tool_loop(service, agent, text, seconds=10.0))
    await run_programs(runtime, backend, ["it"] * 20, inflight=4)
    assert backend.most_in_flight == 4
    assert runtime.max_active == 20
    assert now() < 30  # twenty programs one after the other would take 240 s


async def test_no_more_programs_run_at_once_than_the_limit() -> None:
    runtime = FakeRuntime(tool_loop)
    results = await run_programs(runtime, ScriptedBackend(calls_then("done"), seconds=1.0), ["it"] * 30, most=3)
    assert len(results) == 30
    assert all(result.ok for result in results)
    assert runtime.max_active == 3


async def test_programs_wait_for_residency_as_agents_do() -> None:
    """Each context takes 400 of 1,000 tokens: of many, a few are there at once, and nobody waits for ever. Tools take
    little time, so that two programs keep the server busy."""
    immediately: list[int] = []

    def script(request: Request) -> Answer:
        if len(request.messages) > 1:  # the size of the first nobody knows
            immediately.append(backend.in_flight)
        return replace(calls_then("done", 3)(request), usage=Usage(400, 0, 1))

    means = []
    for kv_tokens in (None, 1_000):
        backend = ScriptedBackend(script, seconds=1.0)
        runtime = FakeRuntime(partial(tool_loop, seconds=0.1))
        results = await run_programs(runtime, backend, ["it"] * 12, kv_tokens=kv_tokens)
        assert [result.output for result in results] == ["done"] * 12
        means.append(sum(immediately) / len(immediately))
        immediately.clear()
    assert means[1] < means[0] / 2


async def test_an_invalid_answer_is_requested_again_from_the_same_program() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        await service.complete(agent, CompletionRequest((User(text),)))
        return '{"good": true}' if "cannot be used" in text else "It is good."

    runtime = FakeRuntime(program)
    [result] = await run_programs(runtime, ScriptedBackend(lambda _: say("x", Usage(1, 0, 1))), ["it"], schema=Verdict)
    assert result.output == Verdict(good=True)
    assert [text.partition("\n")[0][:17] for _, text in runtime.prompts] == ["Answer with JSON.", "That answer canno"]
    assert runtime.opened == ["agent-0"]
    assert (result.turns, result.usage) == (2, Usage(2, 0, 2))


async def test_a_failed_request_is_retried_before_the_program_sees_it() -> None:
    failures = iter([BackendError(ErrorKind.SERVER, "500"), BackendError(ErrorKind.CONNECTION, "reset")])
    backend = ScriptedBackend(lambda request: next(failures, None) or say("done"))
    [result] = await run_programs(FakeRuntime(tool_loop), backend, ["it"])
    assert result.output == "done"
    assert len(backend.requests) == 3


async def test_a_program_that_fails_after_a_failed_request_reports_that_error() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        try:
            await service.complete(agent, CompletionRequest((User(text),)))
        except BackendError as error:
            raise ProgramFailed("exit status 1") from error
        raise AssertionError

    too_long = BackendError(ErrorKind.CONTEXT_OVERFLOW, "9,000 tokens are too many")
    [result] = await run_programs(FakeRuntime(program), ScriptedBackend(lambda _: too_long), ["it"])
    assert result.error is not None
    assert (result.error.kind, result.error.message) == (ErrorKind.CONTEXT_OVERFLOW, "9,000 tokens are too many")


async def test_a_failing_program_fails_only_its_agent() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        if agent == "agent-1":
            raise ProgramFailed("it ended with exit status 3: no such option")
        return await tool_loop(service, agent, text)

    runtime = FakeRuntime(program)
    results = await run_programs(runtime, ScriptedBackend(calls_then("done")), ["a", "b", "c"])
    assert [result.ok for result in results] == [True, False, True]
    error = results[1].error
    assert error is not None
    assert (error.kind, error.message) == (ErrorKind.PROGRAM, "it ended with exit status 3: no such option")
    assert sorted(runtime.closed) == ["agent-0", "agent-1", "agent-2"]


async def test_a_program_with_a_retryable_failure_gets_a_new_session() -> None:
    lives: Counter[str] = Counter()

    async def program(service: CompletionService, agent: str, text: str) -> str:
        lives[agent] += 1
        if lives[agent] < 3:
            raise ProgramFailed("the server of all programs died", retryable=True)
        return "done"

    runtime = FakeRuntime(program)
    [result] = await run_programs(runtime, ScriptedBackend(calls_then("x")), ["it"])
    assert result.output == "done"
    assert runtime.opened == ["agent-0"] * 3
    assert len(runtime.closed) == 3


async def test_a_program_is_restarted_a_limited_number_of_times() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        raise ProgramFailed("died", retryable=True)

    runtime = FakeRuntime(program)
    [result] = await run_programs(runtime, ScriptedBackend(calls_then("x")), ["it"], retry=Retry(max_retries=2))
    assert result.error is not None
    assert result.error.kind is ErrorKind.PROGRAM
    assert len(runtime.opened) == 3


async def test_a_program_that_exceeds_max_turns_is_cancelled() -> None:
    ended: list[str] = []

    async def program(service: CompletionService, agent: str, text: str) -> str:
        try:
            return await tool_loop(service, agent, text)
        except BackendError:
            await asyncio.sleep(1e6)  # it does not take no for an answer
            raise
        finally:
            ended.append(agent)

    backend = ScriptedBackend(calls_then("never", 1_000))
    [result] = await run_programs(FakeRuntime(program), backend, ["it"], max_turns=5)
    assert result.error is not None
    assert result.error.kind is ErrorKind.MAX_TURNS
    assert (len(backend.requests), ended) == (5, ["agent-0"])


async def test_a_program_that_exceeds_the_agent_timeout_is_cancelled() -> None:
    ended: list[str] = []

    async def program(service: CompletionService, agent: str, text: str) -> str:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(agent)
        raise AssertionError

    runtime = FakeRuntime(program)
    [result] = await run_programs(runtime, ScriptedBackend(calls_then("x")), ["it"], seconds=60.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT
    assert (ended, runtime.closed) == (["agent-0"], ["agent-0"])
    assert now() == pytest.approx(60.0, abs=0.1)


async def test_a_failed_backend_stops_the_run_and_every_program() -> None:
    denied = BackendError(ErrorKind.AUTH, "wrong key", status=401)
    runtime = FakeRuntime(tool_loop)
    with pytest.raises(RunStopped, match="wrong key"):
        await run_programs(runtime, ScriptedBackend(lambda _: denied, seconds=1.0), ["it"] * 5)
    assert runtime.active == 0
    assert sorted(runtime.closed) == sorted(runtime.opened)


async def test_concurrent_requests_of_a_program_are_answered_concurrently() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        async with asyncio.TaskGroup() as group:
            asked = [CompletionRequest((User(f"{text} {n}"),)) for n in range(3)]
            tasks = [group.create_task(service.complete(agent, each)) for each in asked]
        return " ".join(task.result().text for task in tasks)

    def script(request: Request) -> Answer:
        first = request.messages[0]
        assert isinstance(first, User)
        return say(first.text[-1], Usage(100, 0, 1))

    backend = ScriptedBackend(script, seconds=1.0)
    [result] = await run_programs(FakeRuntime(program), backend, ["it"], kv_tokens=10_000)
    assert result.output == "0 1 2"
    assert (result.turns, result.usage.input, backend.most_in_flight) == (3, 300, 3)
    assert now() == pytest.approx(1.0, abs=0.1)
    assert len({request.agent for request in backend.requests}) == 3


async def test_a_program_whose_agent_has_ended_gets_no_more_replies() -> None:
    desks: list[CompletionService] = []

    async def program(service: CompletionService, agent: str, text: str) -> str:
        desks.append(service)
        return await tool_loop(service, agent, text)

    await run_programs(FakeRuntime(program), ScriptedBackend(calls_then("x")), ["it"])
    with pytest.raises(BackendError, match="program is not running any more"):
        await desks[0].complete("agent-0", CompletionRequest((User("still here"),)))


async def test_a_model_without_tool_calls_is_used_in_action_mode() -> None:
    def script(request: Request) -> Answer:
        assert not request.prompt.tools
        assert "look(at?: str)" in request.prompt.system
        told = [message.text for message in request.messages if isinstance(message, User | Assistant)]
        if len(told) == 1:
            return say('{"tool": "look",  "arguments": {"at": "it"}}')
        assert told[1:] == ['{"tool": "look",  "arguments": {"at": "it"}}', "Result of look: seen"]
        return say('{"final": "seen it"}')

    backend = ScriptedBackend(script, native_tools=False)
    [result] = await run_programs(FakeRuntime(tool_loop), backend, ["it"], action_mode=True)
    assert result.output == "seen it"
    assert [call.arguments for call in result.tool_calls] == ['{"at":"it"}']
    assert backend.requests[0].answer_schema is not None


async def test_equal_prompts_of_programs_share_one_object() -> None:
    backend = ScriptedBackend(calls_then("done", 2))
    await run_programs(FakeRuntime(tool_loop), backend, ["a", "b"])
    assert len({id(request.prompt) for request in backend.requests}) == 1
    assert backend.requests[0].prompt.tools == (LOOK,)


async def test_the_recorded_turn_of_a_program_is_not_run_again(tmp_path: Path) -> None:
    changes = Changes((FileChange("ä.py", "added", 2, 0),), "patch")

    async def program(service: CompletionService, agent: str, text: str) -> ProgramResult:
        said = await tool_loop(service, agent, text)
        return ProgramResult(said, changes)

    async def once() -> tuple[list[object], FakeRuntime]:
        store = SqliteStore(tmp_path)
        await store.open()
        runtime = FakeRuntime(program)
        try:
            results = await run_programs(runtime, ScriptedBackend(calls_then("done")), ["a", "b"], store=store)
        finally:
            await store.aclose()
        told = [(r.output, r.changes, r.turns, r.usage, r.transcript, r.tool_calls) for r in results]
        return [*told], runtime

    first, _ = await once()
    second, runtime = await once()
    assert second == first
    assert runtime.prompts == []
