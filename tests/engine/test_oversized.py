"""Inputs that do not fit the model's window, through the whole engine: refused, or answered in parts."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked, now
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, RunStopped, Tool
from batch_agent.core.events import AgentFinished, AgentStarted
from batch_agent.core.facts import Replied
from batch_agent.core.messages import Assistant
from batch_agent.core.requests import Request, Usage
from batch_agent.core.task_fields import Fields
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import Answer, Script, ScriptedBackend, call, say

WINDOW = 1000
TEXT = "\n\n".join(f"Paragraph {n} says the number {n * n}. " + "It has some more words. " * 8 for n in range(60))
"""Some 12,000 characters, and so 3,000 tokens: four parts."""
SHORT = "A short text."


class Counting(ScriptedBackend):
    """Four characters are a token, and a prompt that is too long is refused."""

    def __init__(self, script: Script, *, seconds: float = 0.0, context_tokens: int = WINDOW, **traits: Any) -> None:
        super().__init__(self._strict, seconds=seconds, context_tokens=context_tokens, **traits)
        self._inside = script
        self.counted = 0

    async def count_tokens(self, text: str) -> int | None:
        self.counted += 1
        return len(text) // 4

    async def _strict(self, request: Request) -> Answer:
        assert len(asked(request)) // 4 < WINDOW
        answer = self._inside(request)
        answer = answer if isinstance(answer, Answer) else await answer
        return answer if isinstance(answer, BackendError) else replace(answer, usage=Usage(10, 5, 1))


def numbers(request: Request) -> Answer:
    """Every agent answers with the numbers of the paragraphs that it was given or told of."""
    found = sorted({int(n) for n in re.findall(r"number (\d+)", asked(request))})
    return say(" ".join(f"number {n}" for n in found) or "none")


def part_of(request: Request) -> tuple[int, int] | None:
    """Which part of how many a request is about; None for one that is about the whole."""
    found = re.search(r"This is part (\d+) of (\d+)", asked(request))
    return (int(found[1]), int(found[2])) if found else None


def is_merge(request: Request) -> bool:
    return "These are the answers" in asked(request)


async def run(backend: ScriptedBackend, inputs: list[Any], task: str = "{it}", **options: Any) -> list[AgentResult]:
    options = {"oversized": "chunk", "hoist": False, **options}
    results: list[AgentResult] = await BatchAgent.run(task=task, inputs=inputs, backend=backend, **options)
    assert backend.in_flight == 0
    return results


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """What a run keeps, for the next one. In memory: while a thread reads a checkpoint virtual time would jump on."""
    kept = MemoryStore()
    monkeypatch.setattr("batch_agent.run.resource_opener._store", lambda spec: kept)
    return kept


EVERY_NUMBER = " ".join(f"number {n * n}" for n in range(60))


async def test_an_input_beyond_the_context_window_is_refused_before_any_request() -> None:
    backend = Counting(numbers)
    results = await run(backend, [SHORT, TEXT, SHORT], oversized="refuse")
    assert [result.ok for result in results] == [True, False, True]
    error = results[1].error
    assert error is not None
    assert error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert "Input 1" in error.message
    assert results[1].input == TEXT
    assert len(backend.requests) == 2


async def test_clearly_short_inputs_are_not_tokenized() -> None:
    backend = Counting(numbers)
    results = await run(backend, [f"{n} is short" for n in range(200)])
    assert all(result.ok for result in results)
    assert backend.counted <= 3  # for the run, not for its inputs


async def test_an_input_beyond_the_context_window_is_answered_in_chunks_and_merged() -> None:
    backend = Counting(numbers)
    [result, short] = await run(backend, [TEXT, SHORT], task="Which numbers? {it}")
    assert result.output == EVERY_NUMBER
    assert short.output == "none"
    assert (result.index, result.input) == (0, TEXT)
    parts = [request for request in backend.requests if part_of(request)]
    merges = [request for request in backend.requests if is_merge(request)]
    assert sorted(map(part_of, parts), key=str) == [(n, len(parts)) for n in range(1, len(parts) + 1)]
    assert 4 <= len(parts) <= 6
    assert len(merges) == 1
    assert f"Which numbers? [given in {len(parts)} parts]" in asked(merges[0])
    turns = len(parts) + 1
    assert (result.turns, result.usage) == (turns, Usage(10 * turns, 5 * turns, turns))


class Doc(BaseModel):
    title: str
    body: str


class Found(BaseModel):
    numbers: list[int]


def as_json(request: Request) -> Answer:
    found = re.findall(r"number (\d+)", asked(request)) if not is_merge(request) else _told(request)
    return say(orjson.dumps({"numbers": [int(n) for n in found]}).decode())


def _told(request: Request) -> list[int]:
    answers = orjson.loads(asked(request).partition("in order:\n\n")[2].rpartition("\n\n")[0])
    return [n for answer in answers for n in answer["numbers"]]


@pytest.mark.parametrize("wrap", [lambda body: Doc(title="T", body=body), lambda body: {"title": "T", "body": body}])
async def test_the_longest_field_is_split_and_every_chunk_has_the_other_fields(wrap: Callable[[str], Any]) -> None:
    backend = Counting(as_json)
    [result] = await run(backend, [wrap(TEXT)], task="{title}: {body}", output_schema=Found)
    assert result.output == Found(numbers=[n * n for n in range(60)])
    assert all(asked(request).startswith("T: ") for request in backend.requests if part_of(request))
    assert len({(request.prompt, str(request.answer_schema)) for request in backend.requests}) == 1


@pytest.mark.parametrize("task", ["{question} {text}", Fields("Answer.", "question", "text")])
async def test_a_field_shared_by_all_inputs_is_split_in_any_layout(task: str | Fields) -> None:
    backend = Counting(numbers)
    inputs = [{"question": f"Question {n}?", "text": TEXT} for n in range(3)]
    results = await BatchAgent.run(task=task, inputs=inputs, backend=backend, oversized="chunk")
    assert [result.output for result in results] == [EVERY_NUMBER] * 3
    for n in range(3):
        parts = [part_of(request) for request in backend.requests if f"Question {n}?" in asked(request)]
        assert len(parts) == len(backend.requests) // 3


async def test_chunks_may_use_tools_and_their_total_usage_is_reported() -> None:
    @Tool.define
    async def look() -> str:
        await asyncio.sleep(1)
        return "seen"

    def answer(request: Request) -> Answer:
        if part_of(request) and not any(isinstance(message, Assistant) for message in request.messages):
            return call("look")
        return numbers(request)

    backend = Counting(answer, kv_tokens=2000, inflight=4)
    results = await run(backend, [TEXT, TEXT + " ", SHORT], tools=[look])
    assert [result.output for result in results] == [EVERY_NUMBER, EVERY_NUMBER, "none"]
    parts = len({part_of(request) for request in backend.requests} - {None})
    assert [len(result.tool_calls) for result in results] == [parts, parts, 0]
    assert [result.turns for result in results] == [2 * parts + 1, 2 * parts + 1, 1]
    assert len(results[0].timing.ttft) == results[0].turns


@pytest.mark.parametrize("options", [{"max_inflight": 2}, {"max_dispatched": 1}])
async def test_chunks_respect_the_limits_of_the_run(options: dict[str, Any]) -> None:
    backend = Counting(numbers, seconds=1, inflight=100)
    results = await run(backend, [f"{TEXT} {n}" for n in range(5)], **options)
    assert [result.output for result in results] == [EVERY_NUMBER] * 5
    assert backend.most_in_flight == options.get("max_inflight", 1)


async def test_chunk_answers_that_do_not_fit_one_prompt_are_merged_in_rounds() -> None:
    def wordy(request: Request) -> Answer:
        said = numbers(request)
        assert not isinstance(said, BackendError)
        room = 20 if is_merge(request) else 1100
        return replace(said, text=said.text + "." * room)

    backend = Counting(wordy)
    [result] = await run(backend, [TEXT])
    assert set(re.findall(r"\d+", str(result.output))) == {str(n * n) for n in range(60)}
    merges = [request for request in backend.requests if is_merge(request)]
    assert len(merges) > 2
    assert "several that follow each other" in asked(merges[-1])
    assert result.turns == len(backend.requests)


async def test_chunk_answers_too_long_to_merge_fail_the_agent_with_a_reason() -> None:
    [result, other] = await run(Counting(lambda request: say("x" * 3000)), [TEXT, SHORT])
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert "shorter answers" in result.error.message
    assert result.turns >= 4
    assert other.ok


@pytest.mark.parametrize(
    ("task", "value", "says"),
    [
        ("{a}{b}", {"a": "x" * 3600, "b": "y " * 1900}, "too little room"),
        ("{a}", {"a": list(range(3000))}, "no text that could be split"),
    ],
)
async def test_an_input_that_cannot_be_split_is_refused(task: str, value: Any, says: str) -> None:
    backend = Counting(numbers)
    [result] = await run(backend, [value], task=task)
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert says in result.error.message
    assert backend.requests == []


async def test_a_failed_chunk_fails_only_its_own_agent() -> None:
    async def answer(request: Request) -> Answer:
        part = part_of(request)
        if part and part[0] == 2 and "first" in asked(request):
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        if part and "first" in asked(request):
            await asyncio.sleep(3600)
        return numbers(request)

    backend = Counting(answer, seconds=1)
    results = await run(
        backend,
        [{"it": TEXT, "name": "first"}, {"it": TEXT, "name": "second"}, {"it": SHORT, "name": "third"}],
        task="{name} {it}",
        max_inflight=2,
    )
    assert [result.ok for result in results] == [False, True, True]
    error = results[0].error
    assert error is not None
    assert error.kind is ErrorKind.BAD_REQUEST
    assert re.match(r"Part 2 of \d: no", error.message)
    assert results[0].output is None
    assert not any(is_merge(request) and "first" in asked(request) for request in backend.requests)
    assert now() < 60


async def test_each_chunk_has_the_timeout_of_an_agent() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(100 if part_of(request) == (3, 4) or part_of(request) == (3, 5) else 20)
        return numbers(request)

    backend = Counting(answer)
    [result] = await run(backend, [TEXT], max_inflight=1, timeout_per_agent=90)
    assert result.error is not None
    assert result.error.kind is ErrorKind.AGENT_TIMEOUT
    assert result.error.message.startswith("Part 3 of ")
    assert result.turns == 2


async def test_a_stop_during_a_chunk_stops_the_run() -> None:
    with pytest.raises(RunStopped):
        await run(Counting(lambda request: BackendError(ErrorKind.AUTH, "who are you?", status=401)), [TEXT])


async def test_a_cancellation_inside_a_chunk_fails_only_its_agent() -> None:
    async def answer(request: Request) -> Answer:
        if part_of(request):
            raise asyncio.CancelledError
        return numbers(request)

    results = await run(Counting(answer), [TEXT, SHORT])
    assert [result.ok for result in results] == [False, True]
    assert results[0].error is not None
    assert results[0].error.kind is ErrorKind.INTERNAL


async def test_cancelling_a_run_cancels_its_chunks() -> None:
    async def answer(request: Request) -> Answer:
        await asyncio.sleep(3600)
        return numbers(request)

    backend = Counting(answer)
    running = asyncio.create_task(run(backend, [TEXT, TEXT + " "]))
    await asyncio.sleep(5)
    assert backend.in_flight == 8
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert backend.in_flight == 0
    assert now() == 5


async def test_chunks_are_not_reported_as_agents() -> None:
    log = EventList()
    await run(Counting(numbers), [TEXT, SHORT], events=log)
    assert sorted(event.index for event in log.events if isinstance(event, AgentStarted)) == [0, 1]
    assert sorted(event.result.index for event in log.events if isinstance(event, AgentFinished)) == [0, 1]


async def test_backend_leave_is_called_for_finished_chunks() -> None:
    backend = Counting(numbers, has_agent_sessions=True)
    [result] = await run(backend, [TEXT])
    assert len(backend.left) == len(backend.requests)
    assert backend.left[-1] == result.key
    assert all(agent.startswith(f"{result.key}.part") for agent in backend.left[:-1])


async def interrupted_after(parts: int, store: MemoryStore) -> int:
    """A run that is cancelled when so many parts were answered; says how many requests it made."""
    answered, enough = 0, asyncio.Event()

    async def answer(request: Request) -> Answer:
        nonlocal answered
        if answered >= parts:
            enough.set()
            await asyncio.Event().wait()
        answered += 1
        return numbers(request)

    backend = Counting(answer)
    options: dict[str, Any] = {"timeout_per_agent": None, "timeout_per_turn": None}
    running = asyncio.create_task(run(backend, [TEXT], max_inflight=1, **options))
    await enough.wait()
    running.cancel()
    await asyncio.wait([running])
    return len(backend.requests)


async def test_finished_chunks_are_not_requested_again(store: MemoryStore) -> None:
    await interrupted_after(2, store)
    backend = Counting(numbers)
    [result] = await run(backend, [TEXT])
    assert result.output == EVERY_NUMBER
    parts = [part for request in backend.requests if (part := part_of(request))]
    assert sorted(parts) == [(number, parts[0][1]) for number in range(3, parts[0][1] + 1)]
    assert result.turns == len(backend.requests) + 2
    assert result.usage.input == 10 * result.turns


async def test_an_input_with_a_recorded_merge_sends_no_request(store: MemoryStore) -> None:
    [first] = await run(Counting(numbers), [TEXT])
    backend, log = Counting(numbers), EventList()
    [again] = await run(backend, [TEXT], events=log)
    assert backend.requests == []
    assert again == replace(first, timing=again.timing)
    assert [event.resumed for event in log.events if isinstance(event, AgentFinished)] == [True]
    [refusing] = await run(backend, [TEXT], oversized="refuse")
    assert refusing == replace(first, timing=refusing.timing)
    assert backend.requests == []


async def test_a_resumed_run_requests_failed_chunks_again_and_no_others(
    store: MemoryStore,
) -> None:
    def second_fails(request: Request) -> Answer:
        part = part_of(request)
        return BackendError(ErrorKind.BAD_REQUEST, "no") if part and part[0] == 3 else numbers(request)

    [failed] = await run(Counting(second_fails), [TEXT], max_inflight=1)
    assert failed.error is not None
    backend = Counting(numbers)
    [result] = await run(backend, [TEXT])
    assert result.output == EVERY_NUMBER
    assert {part[0] for request in backend.requests if (part := part_of(request))}.isdisjoint({1, 2})


async def test_another_window_gives_other_chunks_which_are_requested_again(store: MemoryStore) -> None:
    await interrupted_after(3, store)
    backend = Counting(numbers)
    [result] = await run(backend, [TEXT], context_tokens=800)
    assert result.output == EVERY_NUMBER
    asked_now = [part for request in backend.requests if (part := part_of(request))]
    assert len(asked_now) == asked_now[0][1]
    facts = await store.facts(f"{result.key}.part1")
    assert sum(isinstance(fact, Replied) for fact in facts) == 1


async def test_an_input_that_fits_a_larger_window_is_requested_whole(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.WINDOW", 100_000)

    def no_merge(request: Request) -> Answer:
        return BackendError(ErrorKind.BAD_REQUEST, "no") if is_merge(request) else numbers(request)

    [failed] = await run(Counting(no_merge, context_tokens=1000), [TEXT])
    assert not failed.ok
    backend = Counting(numbers)
    [result] = await run(backend, [TEXT], context_tokens=100_000)
    assert result.output == EVERY_NUMBER
    assert [asked(request) for request in backend.requests] == [TEXT]


async def test_without_a_token_counter_chunks_are_small_enough_to_fit() -> None:
    backend = ScriptedBackend(numbers, context_tokens=WINDOW)
    [result] = await run(backend, [TEXT])
    assert result.output == EVERY_NUMBER
    assert max(len(asked(request)) for request in backend.requests if part_of(request)) < 2.5 * WINDOW
