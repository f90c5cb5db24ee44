"""What a run saved, against numbers that were added up by hand."""

from pathlib import Path
from typing import Any

from tests.support.event_logs import answered, seen, started, turn, written

from batch_agent import ErrorKind, Usage
from batch_agent.core.events import (
    CallsEnded,
    CallsStarted,
    Event,
    RequestRetried,
    SchedulingReported,
    ToolsUsed,
    TurnStarted,
)
from batch_agent.core.results import CallRecord, ToolUse
from batch_agent.core.run_reports import Pacing, Scheduling, SharedResults

AFTER_ERRORS = "tokens not paid again after errors"
AFTER_RESTARTS = "tokens not paid again after a restart"


def saved(folder: Path, *processes: list[tuple[float, Event]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in seen(written(folder, *processes))["savings"]}


def turns(key: str, *usages: Usage, at: float = 1.0, first: int = 1) -> list[tuple[float, Event]]:
    """Turns that each call a tool, but for the last."""
    events: list[tuple[float, Event]] = []
    for number, usage in enumerate(usages, first):
        if number > first:
            events += [(at, CallsStarted(key, number - 1, ("f",))), (at, CallsEnded(key, number - 1, (), 0.0))]
        events += [(at, TurnStarted(key, number)), (at, turn(key, number, usage))]
    return events


def test_prefill_is_what_the_server_found_in_its_cache(tmp_path: Path) -> None:
    row = saved(tmp_path, [*started(("a", 0)), *turns("a", Usage(100, 60, 10), Usage(150, 100, 10))])[
        "prompt tokens not computed"
    ]
    assert (row["saved"], row["without"], row["unit"]) == (60 + 100, 100 + 150, "tokens")


def test_a_server_that_names_no_cached_tokens_leaves_it_open(tmp_path: Path) -> None:
    row = saved(tmp_path, [*started(("a", 0)), *turns("a", Usage(100, 0, 10))])["prompt tokens not computed"]
    assert (row["saved"], row["without"]) == (None, None)
    assert row["basis"].startswith("Unknown")


def test_tools_save_what_was_shared_or_kept(tmp_path: Path) -> None:
    told = ToolsUsed(
        (ToolUse("f", 10, 3, 5, 2, seconds=6.0, seconds_saved=14.0), ToolUse("g", 4, 4, seconds=2.0))
    )  # fmt: skip
    rows = saved(tmp_path, [*started(), (1.0, told)])
    assert (rows["tool executions avoided"]["saved"], rows["tool executions avoided"]["without"]) == (5 + 2, 10 + 4)
    assert (rows["tool time saved"]["saved"], rows["tool time saved"]["without"]) == (14.0, 14.0 + 6.0 + 2.0)


def test_the_time_that_sharing_saved_is_not_guessed_before_the_tools_tell_it(tmp_path: Path) -> None:
    shared = CallsEnded("a", 1, (CallRecord("f", "", True, 2.0, "shared"),), 2.0)
    rows = saved(tmp_path, [*started(("a", 0)), (1.0, shared)])
    assert rows["tool executions avoided"]["saved"] == 1
    assert rows["tool time saved"]["saved"] is None
    assert "not yet reported by f." in rows["tool time saved"]["basis"]


def test_a_run_without_tools_says_nothing_of_them(tmp_path: Path) -> None:
    assert not [name for name in saved(tmp_path, started()) if name.startswith("tool ")]


def test_a_request_that_is_sent_again_saves_the_turns_before_it(tmp_path: Path) -> None:
    events = [
        *started(("a", 0)),
        *turns("a", Usage(100, 0, 10), Usage(200, 0, 20)),
        (2.0, CallsStarted("a", 2, ("f",))),
        (2.0, TurnStarted("a", 3)),
        (2.0, RequestRetried("a", ErrorKind.SERVER, "no", 0.1)),
        (2.0, TurnStarted("a", 3)),
        (2.0, RequestRetried("a", ErrorKind.SERVER, "no", 0.1)),
        (2.0, TurnStarted("a", 3)),
        (3.0, turn("a", 3, Usage(300, 0, 30))),
        (3.0, answered("a", 0)),
    ]
    row = saved(tmp_path, events)[AFTER_ERRORS]
    before = 110 + 220
    assert row["saved"] == 2 * before
    assert row["without"] == before + 330 + 2 * before
    assert row["basis"].startswith("2 retried requests and 0 rejected answers")


def test_a_first_turn_that_is_sent_again_saves_nothing(tmp_path: Path) -> None:
    retried = RequestRetried("a", ErrorKind.SERVER, "no", 0.1)
    events = [*started(("a", 0)), (1.0, TurnStarted("a", 1)), (1.0, retried), *turns("a", Usage(100, 0, 10))]
    assert saved(tmp_path, events)[AFTER_ERRORS]["saved"] == 0


def test_an_answer_that_is_asked_for_again_saves_the_turns_before_it(tmp_path: Path) -> None:
    events = [
        *started(("a", 0)),
        *turns("a", Usage(100, 0, 10), Usage(200, 0, 20)),  # the second is no answer that fits
        (2.0, TurnStarted("a", 3)),
        (2.0, turn("a", 3, Usage(300, 0, 30))),
    ]
    row = saved(tmp_path, events)[AFTER_ERRORS]
    assert row["saved"] == 110  # the turn itself is paid for again either way
    assert row["basis"].startswith("0 retried requests and 1 rejected answer")


def test_parts_of_a_long_input_are_agents_of_their_own_in_this(tmp_path: Path) -> None:
    retried = RequestRetried("a.part2", ErrorKind.SERVER, "no", 0.1)
    events = [
        *started(("a", 0)),
        *turns("a.part1", Usage(100, 0, 10)),
        (1.0, TurnStarted("a.part2", 1)),
        (1.0, retried),
    ]
    assert saved(tmp_path, events)[AFTER_ERRORS]["saved"] == 0


def test_each_process_saves_the_answers_that_it_found(tmp_path: Path) -> None:
    first = [*started(("a", 0)), *turns("a", Usage(100, 0, 10)), (2.0, answered("a", 0, usage=Usage(100, 0, 10)))]
    again: list[tuple[float, Event]] = [*started(), (0.1, answered("a", 0, resumed=True, usage=Usage(100, 0, 10)))]
    row = saved(tmp_path, first, again, again)[AFTER_RESTARTS]
    assert (row["saved"], row["without"]) == (2 * 110, 110 + 2 * 110)
    assert row["basis"].startswith("2 answers from the checkpoint and 0 continued agents")


def test_an_agent_that_a_later_process_goes_on_with_saves_its_turns_so_far(tmp_path: Path) -> None:
    first = [
        *started(("a", 0), ("b", 1)),
        *turns("a", Usage(100, 0, 10), Usage(200, 0, 20)),
        *turns("b", Usage(50, 0, 5)),
    ]
    second = [
        *started(("a", 0), ("b", 1)),
        *turns("a", Usage(300, 0, 30), first=3),
        *turns("b", Usage(50, 0, 5)),  # it had failed, and begins anew
    ]
    rows = saved(tmp_path, first, second)
    assert rows[AFTER_RESTARTS]["saved"] == 110 + 220
    assert rows[AFTER_ERRORS]["saved"] == 0


def shared_results(folder: Path, shared: SharedResults | None) -> tuple[dict[str, Any], str | None]:
    """The row of the savings, empty if there is none, and the note of the scheduling section."""
    model = seen(written(folder, [*started(("a", 0)), (1.0, SchedulingReported(Scheduling(shared_results=shared)))]))
    rows = {row["name"]: row for row in model["savings"]}
    return rows.get("prompt tokens of shared results not computed again", {}), model["scheduling"]["shared_results"]


def test_the_report_says_at_which_pace_requests_waited(tmp_path: Path) -> None:
    pace = Pacing(500, is_reported=True, delayed=1)
    model = seen(written(tmp_path, [*started(("a", 0)), (1.0, SchedulingReported(Scheduling(pace=pace)))]))
    note = "Paced at 500 requests/min (the service's limit): 1 request waited for it."
    assert model["scheduling"]["pace"] == note


def test_shared_results_save_what_a_prefix_cache_need_not_compute(tmp_path: Path) -> None:
    row, note = shared_results(tmp_path, SharedResults(12, 128, 512, 480_000, 0.6, 350_000))
    assert (row["saved"], row["without"], row["unit"]) == (480_000, 800_000, "tokens")
    assert "12 results placed first for 128 agents" in row["basis"]
    assert note == (
        "Shared results: 12 tool results were placed before the own text of 128 agents; about 480,000 prompt tokens "
        "(60%) did not have to be computed, and the KV cache held up to 350,000 tokens less."
    )


def test_what_could_be_saved_is_advice_and_no_saving(tmp_path: Path) -> None:
    row, note = shared_results(tmp_path, SharedResults(12, 128, 0, 480_000, 0.61))
    assert row == {}
    assert note == (
        "Shared results: 12 tool results were read by 128 agents, and computed again for each of them. Placed first, "
        '61% fewer prompt tokens are computed (about 480,000): set shared_results="auto".'
    )


def test_results_placed_first_for_nothing_are_no_saving(tmp_path: Path) -> None:
    row, note = shared_results(tmp_path, SharedResults(1, 1, 1, -500, -0.05))
    assert row == {}
    assert note == (
        "Shared results: 1 tool result was placed before the own text of 1 agent; about 500 prompt tokens (5%) were "
        "computed in addition."
    )


def test_a_run_that_shares_no_results_says_nothing_of_them(tmp_path: Path) -> None:
    assert shared_results(tmp_path, None) == ({}, None)
