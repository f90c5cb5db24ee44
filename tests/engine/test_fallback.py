"""Fallback: what one backend cannot serve, the next one does, and nothing is paid for twice."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversations import rules
from tests.support.engine_harness import asked
from tests.support.event_list import EventList

from batch_agent import AgentResult, BatchAgent, CodexRuntime, ErrorKind, Flow, Results, RunStopped, SpecError, Tool
from batch_agent.agent.conversation import Conversation, Generate
from batch_agent.core.agent_config import Job
from batch_agent.core.errors import BackendError
from batch_agent.core.events import Notice, StageEvent
from batch_agent.core.facts import Fact, Failed, Replied, Returned, Sampled, Started
from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.results import AgentError
from batch_agent.run.carried_conversation import LeftConversation
from batch_agent.testing import Answer, ScriptedBackend, say

ROWS = [{"n": number} for number in range(6)]
PRICES = {"small": (1.0, 0.5, 2.0), "large": (10.0, 5.0, 20.0)}
DOWN = "http://127.0.0.1:1/v1"


def number(request: Request) -> int:
    return int(asked(request).split()[1])


def good(request: Request) -> Answer:
    return say(f"answer {number(request)}", Usage(100, 0, 10))


def failing(kind: ErrorKind, *numbers: int) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        if number(request) in numbers:
            raise BackendError(kind, f"the server says {kind}")
        return good(request)

    return answer


def refusing(request: Request) -> Answer:
    return Reply("I would rather not.", "refusal", Usage(50, 0, 5)) if number(request) == 2 else good(request)


async def run(first: Any, *fallback: Any, **options: Any) -> Results:
    given = {"task": "Do {n}", "inputs": ROWS, "progress": False, "max_retries": 0, "prices": PRICES, **options}
    results: Results = await BatchAgent.run(backend=first, fallback=list(fallback), **given)
    return results


@pytest.mark.parametrize("kind", [ErrorKind.SERVER, ErrorKind.NOT_FOUND, ErrorKind.CONTEXT_OVERFLOW, ErrorKind.AUTH])
async def test_agents_that_fail_on_one_backend_are_run_by_the_next(kind: ErrorKind) -> None:
    small, large = ScriptedBackend(failing(kind, 2, 4), model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large)
    assert [result.output for result in results] == [f"answer {row['n']}" for row in ROWS]
    assert [result.model for result in results] == ["small", "small", "large", "small", "large", "small"]
    assert sorted(map(number, large.requests)) == [2, 4]


async def test_a_refusal_goes_to_the_next_model_and_costs_what_each_model_costs() -> None:
    small, large = ScriptedBackend(refusing, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large)
    assert [result.model for result in results][2] == "large"
    assert results[1].cost == pytest.approx((100 * 1 + 10 * 2) / 1e6)
    assert results[2].cost == pytest.approx((100 * 10 + 10 * 20) / 1e6)


async def test_a_name_is_another_model_of_the_same_backend() -> None:
    def answer(request: Request) -> Answer:
        return refusing(request) if request.model == "small" else good(request)

    backend = ScriptedBackend(answer)
    results = await run(backend, "large", model="small")
    assert [result.model for result in results][1:3] == ["small", "large"]
    assert all(results[at].ok for at in range(6))


async def test_other_failures_stay_where_they_are() -> None:
    small, large = ScriptedBackend(good, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large, output_schema=int)
    assert {result.error.kind for result in results if result.error} == {ErrorKind.INVALID_OUTPUT}
    assert not large.requests


async def test_a_server_that_cannot_be_reached_is_left_out() -> None:
    large, log = ScriptedBackend(good, model="large"), EventList()
    results = await run(DOWN, large, events=log)
    assert [result.model for result in results] == ["large"] * 6
    assert any("is not used any more" in event.text for event in log.events if isinstance(event, Notice))


async def test_a_server_that_is_lost_during_the_run_leaves_the_rest_to_the_next() -> None:
    def answer(request: Request) -> Answer:
        if number(request) > 1:
            raise BackendError(ErrorKind.UNAVAILABLE, "connection refused")
        return good(request)

    small, large = ScriptedBackend(answer, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large, max_inflight=1, max_retries=1)
    assert [result.model for result in results] == ["small"] * 2 + ["large"] * 4
    assert sorted(map(number, large.requests)) == [2, 3, 4, 5]


async def test_if_no_backend_is_left_the_error_is_raised_or_names_both_failures() -> None:
    with pytest.raises((BackendError, RunStopped)):
        await run(DOWN, DOWN)
    small = ScriptedBackend(failing(ErrorKind.SERVER, 3), model="small")
    large = ScriptedBackend(failing(ErrorKind.CONTEXT_OVERFLOW, 3), model="large")
    results = await run(small, large)
    assert [result.ok for result in results] == [True, True, True, False, True, True]
    error = results[3].error
    assert error is not None
    assert error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert "Before that, small: the server says server" in error.message
    results = await run(small, DOWN)
    assert [result.ok for result in results] == [True, True, True, False, True, True]


class Saving:
    """A first backend that calls a tool and fails when it has the result, and a tool that counts what it did."""

    def __init__(self, effect: Literal["read", "write"], kind: ErrorKind = ErrorKind.CONTEXT_OVERFLOW) -> None:
        self.written: list[int] = []
        self._kind = kind

        @Tool.define(effect=effect)
        async def save(n: int) -> str:
            """Saves a number."""
            self.written.append(n)
            return f"saved {n}"

        self.tool = save

    def calling(self, request: Request) -> Answer:
        if not isinstance(request.messages[-1], ToolResults):
            return Reply("I save.", "calls", Usage(100, 0, 10), (ToolCall("toolu_01Abc", "save", arguments(request)),))
        if self._kind is ErrorKind.REFUSED:
            return Reply("I would rather not.", "refusal", Usage(100, 0, 5))
        raise BackendError(self._kind, "too long")


def arguments(request: Request) -> str:
    return f'{{"n": {number(request)}}}'


@pytest.mark.parametrize("kind", [ErrorKind.CONTEXT_OVERFLOW, ErrorKind.REFUSED, ErrorKind.UNAVAILABLE])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("key", [None, "n"])
async def test_an_agent_goes_on_with_its_conversation_on_the_next_backend(
    kind: ErrorKind, checkpoint: bool, key: str | None, tmp_path: Path
) -> None:
    saving = Saving("write", kind)
    small, large = ScriptedBackend(saving.calling, model="small"), ScriptedBackend(good, model="large")
    options: dict[str, Any] = {"tools": [saving.tool], "checkpoint_dir": tmp_path if checkpoint else None, "key": key}
    results = await run(small, large, **options)
    assert [(result.output, result.model) for result in results] == [(f"answer {n}", "large") for n in range(6)]
    assert sorted(saving.written) == list(range(6))
    assert len(large.requests) == 6
    for request in large.requests:
        _, turn, returned = request.messages
        assert isinstance(turn, Assistant)
        assert isinstance(returned, ToolResults)
        assert (turn.text, turn.calls[0].id, returned.results[0].content) == (
            "I save.",
            "call00001",
            f"saved {number(request)}",
        )
    assert [(result.turns, result.usage, len(result.transcript)) for result in results] == [
        (2, Usage(100, 0, 10), 4)
    ] * 6
    if checkpoint:
        again = await run(ScriptedBackend(good, model="small"), ScriptedBackend(good, model="large"), **options)
        assert [result.output for result in again] == [result.output for result in results]


async def test_equal_inputs_keep_their_conversations() -> None:
    saving = Saving("write")
    small, large = ScriptedBackend(saving.calling, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large, tools=[saving.tool], inputs=[{"n": 1}, {"n": 2}, {"n": 1}])
    assert [result.output for result in results] == ["answer 1", "answer 2", "answer 1"]
    assert sorted(saving.written) == [1, 1, 2]


async def test_a_third_backend_goes_on_where_the_second_one_gave_up() -> None:
    saving = Saving("write")
    backends = [ScriptedBackend(saving.calling, model=name) for name in ("small", "medium")]
    results = await run(*backends, ScriptedBackend(good, model="large"), tools=[saving.tool])
    assert {result.model for result in results} == {"large"}
    assert sorted(saving.written) == list(range(6))


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_an_agent_that_the_next_backend_cannot_continue_starts_again_unless_it_has_written_something(
    effect: Literal["read", "write"],
) -> None:
    saving = Saving(effect)
    small = ScriptedBackend(saving.calling, model="small")
    large = ScriptedBackend(lambda request: say('{"answer": "done"}'), model="large", native_tools=False)
    results = await run(small, large, tools=[saving.tool])
    assert sorted(saving.written) == list(range(6))
    if effect == "write":
        assert not large.requests
        assert {result.error.kind for result in results if result.error} == {ErrorKind.CONTEXT_OVERFLOW}
    else:
        assert {len(request.messages) for request in large.requests} == {1}


@given(st.lists(st.booleans(), max_size=4), st.booleans())
def test_what_is_brought_along_is_a_conversation_that_the_next_backend_can_continue(
    texts: list[bool], has_failed: bool
) -> None:
    """Property: whatever an agent has done, its facts replay to a request, and have nothing of the first backend."""
    config = rules(turns=20)
    job = Job(0, "key", {}, "Do it")
    facts: list[Fact] = [Started.of(job)]
    for at, has_text in enumerate(texts):
        made = ToolCall(f"id-{at}", "look", "{}")
        thought = Thought("hm", signature="signed")
        facts += [
            Sampled(b""),
            Replied(Reply("text" * has_text, "calls", Usage(9, 0, 9), (made,), (thought,)), seconds=1.0),
            Returned((ToolResult(made, "found"),)),
        ]
    facts += [Failed(AgentError(ErrorKind.SERVER, "out"))] if has_failed else []
    carried = LeftConversation(config, facts).facts_for(config, "openai", job)
    assert bool(carried) == bool(texts)
    if carried:
        conversation = Conversation(config, job)
        conversation.replay(carried)
        step = conversation.next()
        assert isinstance(step, Generate)
        assert len(step.request.messages) == 1 + 2 * len(texts)
        assert "signed" not in repr(carried)
        assert conversation.result(0.0).usage == Usage()


def is_first_sample(request: Request) -> bool:
    return request.seed is None


def refusing_first_samples(request: Request) -> Answer:
    """Refuses the first sample of each input."""
    if is_first_sample(request):
        return Reply("I would rather not.", "refusal", Usage(50, 0, 5))
    return good(request)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("key", [None, "n"])
async def test_each_sample_goes_to_the_next_backend_by_itself(
    checkpoint: bool, key: str | None, tmp_path: Path
) -> None:
    small, large = ScriptedBackend(refusing_first_samples, model="small"), ScriptedBackend(good, model="large")
    folder = tmp_path if checkpoint else None
    options: dict[str, Any] = {"samples": 4, "seed": 7, "checkpoint_dir": folder, "key": key}
    results = await run(small, large, **options)
    assert [(each.index, each.sample) for each in results] == [(n, sample) for n in range(6) for sample in range(4)]
    assert all(each.ok for each in results)
    assert {(each.sample, each.model) for each in results} == {(0, "large"), *((n, "small") for n in (1, 2, 3))}
    assert (len(small.requests), len(large.requests)) == (24, 6)
    assert all(map(is_first_sample, large.requests))
    if key is not None:
        assert [each.key for each in results] == [str(n) for n in range(6) for _ in range(4)]
    if checkpoint:
        again = await run(small, large, **options)
        assert [(each.output, each.model, each.sample) for each in again] == [
            (each.output, each.model, each.sample) for each in results
        ]
        assert (len(small.requests), len(large.requests)) == (24, 6)


async def test_each_sample_goes_on_with_its_own_conversation() -> None:
    saving = Saving("write")
    small, large = ScriptedBackend(saving.calling, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large, tools=[saving.tool], samples=3, inputs=[{"n": 1}, {"n": 2}, {"n": 1}])
    assert [(each.index, each.sample, each.output) for each in results] == [
        (index, sample, f"answer {n}") for index, n in enumerate((1, 2, 1)) for sample in range(3)
    ]
    assert sorted(saving.written) == [1] * 6 + [2] * 3
    assert {len(request.messages) for request in large.requests} == {3}


async def test_samples_that_a_lost_server_has_not_answered_go_to_the_next_one() -> None:
    answered: list[int] = []

    def answer(request: Request) -> Answer:
        if len(answered) == 5:
            raise BackendError(ErrorKind.UNAVAILABLE, "connection refused")
        answered.append(number(request))
        return good(request)

    small, large = ScriptedBackend(answer, model="small"), ScriptedBackend(good, model="large")
    results = await run(small, large, max_inflight=1, max_retries=1, samples=2)
    assert [(each.index, each.sample, each.model) for each in results] == [
        (n, sample, "small" if 2 * n + sample < 5 else "large") for n in range(6) for sample in range(2)
    ]
    assert len(large.requests) == 7


async def test_results_are_written_and_handed_over_once(tmp_path: Path) -> None:
    seen: list[AgentResult] = []
    small, large = ScriptedBackend(refusing, model="small"), ScriptedBackend(good, model="large")
    await run(small, large, on_result=seen.append, out=tmp_path / "out.jsonl")
    assert sorted(result.index for result in seen) == list(range(6))
    assert all(result.ok for result in seen)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6


async def test_a_resumed_run_pays_for_nothing_twice(tmp_path: Path) -> None:
    small, large = ScriptedBackend(refusing, model="small"), ScriptedBackend(good, model="large")
    first = await run(small, large, checkpoint_dir=tmp_path)
    again = await run(small, large, checkpoint_dir=tmp_path)
    assert (len(small.requests), len(large.requests)) == (6, 1)
    assert [(result.output, result.model, result.cost) for result in again] == [
        (result.output, result.model, result.cost) for result in first
    ]


async def test_a_resumed_run_needs_no_server_for_what_it_knows(tmp_path: Path) -> None:
    small, large = ScriptedBackend(refusing, model="small"), ScriptedBackend(good, model="large")
    await run(small, large, checkpoint_dir=tmp_path)

    def lost(request: Request) -> Answer:
        raise BackendError(ErrorKind.UNAVAILABLE, "connection refused")

    more = [*ROWS, {"n": 7}]
    gone = ScriptedBackend(lost, model="small")
    results = await run(gone, large, checkpoint_dir=tmp_path, inputs=more)
    assert [result.model for result in results] == ["small", "small", "large", "small", "small", "small", "large"]
    assert len(large.requests) == 2


async def test_all_backends_share_one_budget() -> None:
    small = ScriptedBackend(failing(ErrorKind.SERVER, 3, 4, 5), model="small", context_tokens=1000)
    large = ScriptedBackend(good, model="large", context_tokens=1000)
    results = await run(small, large, max_total_tokens=600, max_tokens=10)
    spent = sum(result.usage.input + result.usage.output for result in results)
    assert spent <= 600
    assert {result.error.kind for result in results if result.error} <= {ErrorKind.BUDGET}


async def test_events_name_the_run_of_each_backend() -> None:
    small, large = ScriptedBackend(refusing, model="small"), ScriptedBackend(good, model="large")
    log = EventList()
    await run(small, large, events=log, model="small")
    names = {event.stage for event in log.events if isinstance(event, StageEvent)}
    assert names == {"small", "fallback 1 (backend)"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fallback": "large"}, "must be a list of models and backends"),
        ({"fallback": [""]}, "must be a list of models and backends"),
        ({"fallback": [3]}, "must be a URL"),
        (
            {"fallback": ["large"], "models": ["a", "b"]},
            "an answer of another one would count for the model that failed",
        ),
        (
            {"fallback": ["large"], "runtime": CodexRuntime(gateway=False)},
            "needs a runtime whose requests go through the gateway",
        ),
        ({"fallback": ["large"], "cluster": "ray"}, "the caller of a run on Ray sends no requests"),
    ],
)
async def test_mistakes_are_found_before_anything_is_sent(options: dict[str, Any], message: str) -> None:
    backend = ScriptedBackend(good)
    with pytest.raises(SpecError, match=message):
        await BatchAgent.run(task="Do {n}", inputs=ROWS, backend=backend, progress=False, **options)
    assert not backend.requests


async def test_leaving_a_run_with_a_fallback_leaves_nothing_behind() -> None:
    small = ScriptedBackend(refusing, model="small", seconds=1.0)
    large = ScriptedBackend(good, model="large", seconds=60.0)
    options: dict[str, Any] = {"task": "Do {n}", "inputs": ROWS, "backend": small, "fallback": [large]}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await BatchAgent.run(**options, progress=False)
    assert len(large.requests) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_flows_have_escalations_instead() -> None:
    with pytest.raises(SpecError, match="escalate"):
        await Flow(ROWS, backend=ScriptedBackend(good), fallback=["large"]).map("a", "Do {n}").run()
