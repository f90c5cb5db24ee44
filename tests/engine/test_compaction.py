"""Agents whose conversations come near the end of the model's window go on, through the whole engine."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import run
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, ErrorKind, Tool
from batch_agent.core.events import BudgetReported, ToolsUsed
from batch_agent.core.facts import Compacted, Fact
from batch_agent.core.messages import Assistant, Message, ToolResults, User
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.core.results import Timing
from batch_agent.run.replay import replay
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import Answer, ScriptedBackend, call, say

WINDOW = 4_000
PAGE = "word " * 600
"""Of 750 tokens: five fit the window, with what is around them."""
TURNS = 14
SUMMARY = "You shorten texts"

both_modes = pytest.mark.parametrize("native", [True, False], ids=["native", "action"])
both_ways = pytest.mark.parametrize("way", ["elide", "summarize"])


def pages(page: Callable[[int], str] = lambda number: f"Page {number}. {PAGE}") -> Tool:
    @Tool.define(effect="read")
    async def turn_to(number: int) -> str:
        return page(number)

    return turn_to


def turn_of(request: Request) -> int:
    return sum(isinstance(message, Assistant) for message in request.messages)


def is_summary(request: Request) -> bool:
    return request.prompt.system.startswith(SUMMARY)


def text_of(message: Message) -> str:
    match message:
        case User(text):
            return text
        case Assistant():
            return message.text + "".join(call.name + call.arguments for call in message.calls)
        case ToolResults(results):
            return "".join(result.content for result in results)


class Reader:
    """A backend with a window, whose model reads page after page. It counts a token for four characters, and what two
    requests of an agent have in common is cached."""

    def __init__(self, *, native: bool = True, turns: int = TURNS, counts: bool = True, **traits: Any) -> None:
        self.backend = ScriptedBackend(self._answer, native_tools=native, context_tokens=WINDOW, **traits)
        self.summary: Callable[[Request], Any] = lambda request: say("It says word.", Usage(800, 0, 9))
        self.kill: tuple[int, asyncio.Future[Any]] | None = None
        """In which request, and whom."""
        self.longest = 0
        self._native = native
        self._turns = turns
        self._counts = counts
        self._last: dict[str, str] = {}

    @property
    def turns(self) -> list[Request]:
        return [request for request in self.backend.requests if not is_summary(request)]

    @property
    def summaries(self) -> list[Request]:
        return [request for request in self.backend.requests if is_summary(request)]

    async def _answer(self, request: Request) -> Answer:
        if self.kill is not None and len(self.backend.requests) >= self.kill[0]:
            self.kill[1].cancel()
            await asyncio.sleep(1_000)
        if is_summary(request):
            answer = self.summary(request)
            return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]
        text = request.prompt.system + str(request.prompt.tools) + "".join(map(text_of, request.messages))
        tokens = len(text) // 4
        if tokens > WINDOW:
            return BackendError(ErrorKind.CONTEXT_OVERFLOW, "the prompt is too long")
        self.longest = max(self.longest, tokens)
        cached = len(commonprefix([text, self._last.get(request.agent, "")])) // 4  # noqa: RUF071 - texts, not paths
        self._last[request.agent] = text
        usage = Usage(tokens, cached, 10) if self._counts else Usage()
        return replace(self._turn(turn_of(request)), usage=usage)

    def _turn(self, turn: int) -> Reply:
        is_over = turn >= self._turns - 1
        if self._native:
            return say("read") if is_over else call("turn_to", number=turn)
        return say('{"final": "read"}' if is_over else f'{{"tool": "turn_to", "arguments": {{"number": {turn}}}}}')


async def read(reader: Reader, inputs: Any = ("a",), **options: Any) -> list[AgentResult]:
    options = {"tools": [pages()], "max_turns": TURNS, **options}
    return await run(reader.backend, list(inputs), **options)


def contents(request: Request) -> list[str]:
    """The results that it shows, in both modes."""
    shown = []
    for message in request.messages:
        if isinstance(message, ToolResults):
            shown += [result.content for result in message.results]
        elif isinstance(message, User) and message.text.startswith("Result of"):
            shown.append(message.text.partition(": ")[2])
    return shown


def timeless(results: list[AgentResult]) -> list[AgentResult]:
    """Without what a later process finds otherwise: the time, and the server's cache."""
    return [replace(each, timing=Timing(), usage=replace(each.usage, cached=0)) for each in results]


def facts(folder: Path) -> list[Fact]:
    with CheckpointReader(folder) as reader:
        return [fact for _, facts in reader.histories() for fact in facts]


@both_modes
async def test_without_compaction_the_agent_exceeds_the_context_window(native: bool) -> None:
    [result] = await read(Reader(native=native), compact_at=None)
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW
    assert result.compactions == 0


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "estimated"])
@both_ways
@both_modes
async def test_with_compaction_an_agent_reads_more_than_its_window_holds(native: bool, way: str, counts: bool) -> None:
    reader = Reader(native=native, counts=counts)
    results = await read(reader, "abc", compact_with=way)
    assert [result.text for result in results] == ["read" if native else '{"final": "read"}'] * 3
    assert all(result.output == "read" and result.turns == TURNS for result in results)
    assert reader.longest <= 0.85 * WINDOW
    assert all(2 <= result.compactions <= 6 for result in results)
    assert bool(reader.summaries) == (way == "summarize")
    for request in reader.turns:
        assert contents(request)[-1:] == [f"Page {turn_of(request) - 1}. {PAGE}"] or turn_of(request) == 0
    left = contents(reader.turns[-1])[0]
    is_summary = "[a summary of 3,008 characters that turn_to gave]\nIt says word."
    elided = "[elided: 3,008 characters that turn_to gave; call it again if you need them]"
    assert left == (is_summary if way == "summarize" else elided)


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "estimated"])
@both_ways
@both_modes
async def test_results_that_are_placed_first_are_compacted_too(native: bool, way: str, counts: bool) -> None:
    reader = Reader(native=native, counts=counts)
    results = await read(reader, "abc", compact_with=way, shared_results="first")
    assert all(result.output == "read" and result.turns == TURNS for result in results)
    assert reader.longest <= 0.85 * WINDOW
    assert all(2 <= result.compactions <= 6 for result in results)
    for request in reader.turns[1:]:
        task, turn = text_of(request.messages[0]), turn_of(request)
        assert f"Page {turn - 1}. {PAGE}" in task or turn == 0
        assert sum(content.startswith("[The result is in") for content in contents(request)) == task.count(
            "<reference call"
        )


@both_modes
async def test_compaction_changes_the_prefix_rarely_and_only_at_shortened_results(native: bool) -> None:
    reader = Reader(native=native)
    [result] = await read(reader)
    moved = 0
    for before, after in pairwise(reader.turns):
        if after.messages[: len(before.messages)] != before.messages:
            moved += 1
            assert len(after.messages) == len(before.messages) + 2
    assert moved == result.compactions
    assert result.compactions <= TURNS / 3


@both_modes
@both_ways
async def test_a_tool_result_that_does_not_fit_the_window_is_cut_with_a_note(native: bool, way: str) -> None:
    reader = Reader(native=native, turns=3)
    tools = [pages(lambda number: f"Page {number}. " + "word " * 6_000)]
    [result] = await read(reader, compact_with=way, tools=tools)
    assert result.output == "read"
    assert reader.longest <= 0.85 * WINDOW
    [first] = contents(reader.turns[1])
    assert first.startswith("Page 0. word word")
    assert "of 30,008 characters are shown; more do not fit into the context]" in first
    old, newest = contents(reader.turns[2])
    assert old.startswith("[elided: 30,008 characters"), "before the newest is cut, everything old has gone"
    assert newest.startswith("Page 1. word word")


async def test_a_request_that_compaction_cannot_shorten_is_sent_unchanged() -> None:
    reader = Reader(turns=3)
    big = "x" * 4 * (WINDOW - 300)
    [result] = await read(reader, [big], tools=[pages(lambda number: "a short page. " * 10)], compact_at=0.5)
    assert result.compactions == 0
    assert result.output == "read"
    [result] = await read(reader, ["x" * 4 * WINDOW])
    assert result.error is not None
    assert result.error.kind is ErrorKind.CONTEXT_OVERFLOW


async def test_compaction_leaves_room_for_the_answer() -> None:
    reader = Reader()
    [result] = await read(reader, max_tokens=1_500)
    assert result.ok
    assert reader.longest <= WINDOW - 1_500


async def test_context_tokens_overrides_the_window_of_the_server() -> None:
    reader = Reader()
    [result] = await read(reader, context_tokens=2_000)
    assert result.ok
    assert reader.longest <= 0.85 * 2_000


async def test_summaries_use_the_compact_model_and_their_tokens_are_counted() -> None:
    reader, log = Reader(), EventList()
    [result] = await read(reader, compact_with="summarize", compact_model="small", events=log)
    assert result.ok
    assert {request.model for request in reader.summaries} == {"small"}
    assert {request.model for request in reader.turns} == {"scripted"}
    [used] = [event for event in log.events if isinstance(event, ToolsUsed)]
    assert used.summaries == Usage(800 * len(reader.summaries), 0, 9 * len(reader.summaries))


@pytest.mark.parametrize("kind", [ErrorKind.SERVER, ErrorKind.NOT_FOUND, ErrorKind.RATE_LIMITED])
async def test_a_failing_summary_model_does_not_fail_the_agent(kind: ErrorKind) -> None:
    reader = Reader()
    reader.summary = lambda request: BackendError(kind, "no")
    [result] = await read(reader, compact_with="summarize")
    assert result.ok
    assert result.compactions > 0
    assert contents(reader.turns[-1])[0].startswith("[elided: ")


async def test_a_summary_request_ends_at_the_turn_timeout() -> None:
    async def never(request: Request) -> Answer:
        await asyncio.sleep(10_000)
        return say("late")

    reader = Reader()
    reader.summary = never
    [result] = await read(reader, compact_with="summarize", timeout_per_turn=5, timeout_per_agent=100)
    assert result.ok
    assert contents(reader.turns[-1])[0].startswith("[elided: ")


@pytest.mark.parametrize("summary", ["", "  \n", "word " * 5_000])
async def test_useless_summaries_are_ignored(summary: str) -> None:
    reader = Reader()
    reader.summary = lambda request: say(summary)
    [result] = await read(reader, compact_with="summarize")
    assert result.ok
    assert reader.longest <= 0.85 * WINDOW


async def test_one_slot_is_enough_for_agents_and_their_summaries() -> None:
    reader = Reader(seconds=1)
    results = await read(reader, "abcd", compact_with="summarize", max_inflight=1)
    assert all(result.ok for result in results)
    assert reader.backend.most_in_flight == 1


async def test_a_compacted_context_does_not_count_as_a_cache_miss() -> None:
    reader = Reader(seconds=1, kv_tokens=100_000)
    results = await read(reader, [str(number) for number in range(12)])
    assert all(result.compactions for result in results)
    scheduling = results.scheduling  # type: ignore[attr-defined]
    assert scheduling.max_residents is not None
    assert (scheduling.cache_misses, scheduling.kv_limit) == (0, 90_000)


@pytest.mark.slow
@both_modes
@both_ways
@pytest.mark.parametrize("requests", [6, 7, 9])
async def test_a_compacting_run_that_is_killed_repeatedly_ends_with_the_same_results(
    tmp_path: Path, native: bool, way: str, requests: int
) -> None:
    """Killed in every request of this number, also in those for summaries: a compaction is whole or was not."""
    undisturbed = await read(Reader(native=native), compact_with=way)
    kills = -1
    results: list[AgentResult] = []
    while not results and (kills := kills + 1) < 20:
        reader = Reader(native=native)
        ended = asyncio.ensure_future(read(reader, compact_with=way, checkpoint_dir=tmp_path))
        reader.kill = (requests, ended)
        with suppress(asyncio.CancelledError):
            results = await ended
    assert 1 <= kills < 20
    assert timeless(results) == timeless(undisturbed)
    kept = [fact for fact in facts(tmp_path) if isinstance(fact, Compacted)]
    assert len(kept) == undisturbed[0].compactions


async def test_a_finished_run_is_read_back_and_replayed_without_asking_for_summaries(tmp_path: Path) -> None:
    first = await read(Reader(), "ab", compact_with="summarize", checkpoint_dir=tmp_path)
    again = Reader()
    assert timeless(await read(again, "ab", compact_with="summarize", checkpoint_dir=tmp_path)) == timeless(first)
    assert again.backend.requests == []
    assert timeless(await replay(tmp_path)) == timeless(first)


async def test_an_agent_that_overflowed_in_an_earlier_run_resumes_with_compaction(tmp_path: Path) -> None:
    [failed] = await read(Reader(), compact_at=None, checkpoint_dir=tmp_path)
    assert not failed.ok
    reader = Reader()
    [result] = await read(reader, checkpoint_dir=tmp_path)
    assert result.ok
    assert result.compactions > 0
    assert turn_of(reader.turns[0]) == failed.turns, "what it had read was not read again"


async def test_an_exhausted_budget_makes_no_summaries_and_is_not_exceeded() -> None:
    reader, log = Reader(), EventList()
    results = await read(
        reader, "ab", compact_with="summarize", max_total_tokens=40_000, max_tokens=100, events=log, max_inflight=1
    )
    [spent] = [event for event in log.events if isinstance(event, BudgetReported)]
    assert spent.tokens <= 40_000
    assert {result.error.kind for result in results if result.error} <= {ErrorKind.BUDGET}
    assert any(result.error for result in results)


async def test_a_compacted_write_tells_the_model_not_to_repeat_it() -> None:
    @Tool.define(effect="write")
    async def turn_to(number: int) -> str:
        return PAGE

    reader = Reader()
    [result] = await read(reader, tools=[turn_to])
    assert result.ok
    assert contents(reader.turns[-1])[0] == (
        "[elided: 3,000 characters that turn_to gave; the call was made, do not repeat it]"
    )


async def test_compaction_keeps_errors_of_tools() -> None:
    def page(number: int) -> str:
        if number == 0:
            raise LookupError("no such page; " * 30)
        return PAGE

    reader = Reader()
    [result] = await read(reader, tools=[pages(page)])
    assert result.compactions > 0
    assert contents(reader.turns[-1])[0].startswith("LookupError: no such page; no such page")
