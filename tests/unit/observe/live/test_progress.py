import io

import pytest
from rich.text import Text

from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    Notice,
    RequestRetried,
    RunStarted,
    SchedulingReported,
    ToolsUsed,
    TurnEnded,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, CallRecord, ToolUse, dollars
from batch_agent.core.run_reports import Pacing, Scheduling
from batch_agent.observe.live import progress as progress_module
from batch_agent.observe.live.detection import progress_if_interactive
from batch_agent.observe.live.progress import PlainProgress, progress_for
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.live.terminal import LiveProgress
from batch_agent.observe.text.summary import summary_lines
from batch_agent.observe.text.text_format import duration, per_time, rounded


def a_board() -> LiveState:
    state = LiveState()
    state.emit(RunStarted("vllm", "m", 8, 3))
    state.emit(AgentStarted("a", 0))
    state.emit(AgentStarted("b", 1))
    state.emit(RequestRetried("a", ErrorKind.SERVER, "boom", 1.0))
    executed, shared = CallRecord("f", "{}", True, 0.1), CallRecord("f", "{}", True, 0.1, "shared")
    kept = CallRecord("f", "{}", False, 0.1, "cached")
    calls = (executed, executed, shared, shared, kept)
    state.emit(AgentFinished(AgentResult(0, "a", usage=Usage(100, 60, 10), tool_calls=calls), resumed=False))
    failed = AgentResult(1, "b", error=AgentError(ErrorKind.MAX_TURNS, "no answer"), tool_calls=(executed, shared))
    state.emit(AgentFinished(failed, resumed=False))
    state.emit(AgentFinished(AgentResult(2, "c"), resumed=True))
    state.emit(ToolsUsed((ToolUse("f", 9, executed=3, shared=4, cached=2, seconds_saved=90),), Usage(10, 0, 1)))
    return state


def test_a_tally_counts_what_happened() -> None:
    state = a_board()
    stats = state.run_stats
    assert (stats.done, stats.ok, stats.failed, stats.resumed, len(state.stages[""].agents)) == (3, 2, 1, 1, 0)
    assert (stats.retries, stats.tool_calls) == ({"server": 1}, 7)
    assert stats.failures.groups == [("max_turns", 1, "no answer")]
    assert stats.usage == Usage(110, 60, 11)


def test_the_summary_has_all_key_figures() -> None:
    said = "\n".join(summary_lines(a_board(), 75))
    assert "2 of 3 agents answered in 1 min 15 s (m on vllm)." in said
    assert "1 answer restored from the checkpoint" in said
    assert "55% of the input from the prefix cache" in said
    assert "Tool calls: 7, 3 of them executed, 4 shared (1 min 30 s of tool time saved)." in said  # and they add up
    assert "Retried requests: 1." in said
    assert "Failed, max_turns: 1. Example: no answer" in said


def stopped_run(total: int | None) -> LiveState:
    """Two agents answered, one failed, and one has had a turn."""
    state = LiveState()
    state.emit(RunStarted("vllm", "m", 8, total))
    for index, key in enumerate("abcd"):
        state.emit(AgentStarted(key, index))
        state.emit(TurnEnded(key, 1, Usage(100, 0, 10), "stop", 0.0, 1.0, None, 1))
    state.emit(TurnEnded("d.part1", 1, Usage(7, 0, 3), "stop", 0.0, 1.0, None, 1))
    for index, key in enumerate("ab"):
        state.emit(AgentFinished(AgentResult(index, key, usage=Usage(100, 0, 10)), resumed=False))
    error = AgentError(ErrorKind.MAX_TURNS, "no answer")
    state.emit(AgentFinished(AgentResult(2, "c", usage=Usage(100, 0, 10), error=error), resumed=False))
    state.emit(TurnEnded("c", 2, Usage(100, 0, 10), "stop", 0.0, 1.0, None, 1))  # late news of another worker
    return state


@pytest.mark.parametrize(
    ("total", "line"),
    [
        (1300, "2 of 1,300 agents answered, 1 failed, 1,297 not finished after 5 s (m on vllm)."),
        (None, "2 agents answered, 1 failed, the others not finished after 5 s (m on vllm)."),
        (3, "2 of 3 agents answered in 5 s (m on vllm)."),
    ],
)
def test_the_summary_of_a_stopped_run_counts_all_its_agents_and_their_tokens(total: int | None, line: str) -> None:
    said = summary_lines(stopped_run(total), 5, is_stopped=True)
    assert said[0] == line
    assert "Tokens: 407 in, 43 out." in said


def test_the_summary_says_at_which_pace_requests_waited() -> None:
    state = a_board()
    state.emit(SchedulingReported(Scheduling(8, pace=Pacing(500, 30_000, is_reported=True, delayed=1234))))
    line = "Paced at 500 requests/min and 30,000 tokens/min (the service's limit): 1,234 requests waited for it."
    assert line in summary_lines(state, 1)


def test_a_pace_that_delayed_nothing_is_not_in_the_summary() -> None:
    state = a_board()
    state.emit(SchedulingReported(Scheduling(8, pace=Pacing(500, is_reported=True))))
    assert "Paced" not in "\n".join(summary_lines(state, 1))


def test_the_summary_names_tools_that_failed_and_how_often() -> None:
    """Of the calls that the line above counts: those of finished agents."""
    state = a_board()
    assert "Tool calls: 7, " in "\n".join(summary_lines(state, 1))
    assert "Failed tool calls: 'f' 1 of 7." in summary_lines(state, 1)
    names = [("search", False), ("search", False), ("search", True), ("\x1b[2Jgone", False), ("f", True)]
    calls = tuple(CallRecord(name, "{}", ok, 0.1) for name, ok in names)
    state.emit(CallsEnded("d", 1, calls, 0.1))
    assert "Failed tool calls: 'f' 1 of 7." in summary_lines(state, 1)  # its agent is not finished
    state.emit(AgentFinished(AgentResult(3, "d", tool_calls=calls), resumed=False))
    said = summary_lines(state, 1)
    assert "Failed tool calls: 'search' 2 of 3, 'f' 1 of 8, '\\x1b[2Jgone' 1 of 1." in said
    assert any(line.startswith("Tool calls: 12, ") for line in said)
    nine = tuple(CallRecord(f"t{number}", "{}", False, 0.1) for number in range(9))
    state.emit(AgentFinished(AgentResult(4, "e", tool_calls=nine), resumed=False))
    assert "and 7 more tools." in "\n".join(summary_lines(state, 1))


def test_a_pipe_gets_plain_lines_and_notices_at_once() -> None:
    stream = io.StringIO()
    progress = progress_for(stream)
    assert isinstance(progress, PlainProgress)
    with progress:
        progress.emit(Notice("Starting the embedded model ..."))
    assert stream.getvalue() == "Starting the embedded model ...\n"


def test_a_log_gets_lines_only_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LINE_INTERVAL", 0.0)
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.emit(RunStarted("vllm", "m", 8, 3, seen=("vLLM 0.11",)))
    for _ in range(2):
        progress.emit(ToolsUsed(()))
    progress.emit(AgentStarted("a", 0))
    progress.emit(RequestRetried("a", ErrorKind.RATE_LIMITED, "quota", 1.0))
    progress.emit(RequestRetried("a", ErrorKind.RATE_LIMITED, "HTTP 429: over quota", 1.0))
    progress.emit(TurnEnded("a", 0, Usage(), "stop", 0.0, 1.0, None, 3))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "m on vLLM 0.11"
    assert [line.split(";")[0] for line in lines[1:]] == [
        "0 of 3 done, 0 running",
        "0 of 3 done, 1 running",
        "0 of 3 done, 1 running, 1 retry (rate_limited)",
        "0 of 3 done, 1 running, 2 retries (rate_limited)",
        "0 of 3 done, 1 running, 2 retries (rate_limited)",
    ]
    problems = [line.partition("; no answer yet: ")[2].split(";")[0] for line in lines[3:]]
    assert problems == ["quota", "HTTP 429: over quota", ""]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a person at a terminal."""
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def test_a_terminal_gets_the_dashboard_and_a_pipe_only_on_request(usual: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_for(Terminal()), LiveProgress)
    assert isinstance(progress_for(Terminal(), False), PlainProgress)
    assert isinstance(progress_for(io.StringIO(), True), LiveProgress)


def test_colors_are_left_out_where_they_are_not_wanted(usual: pytest.MonkeyPatch) -> None:
    colored = progress_for(Terminal())
    usual.setenv("NO_COLOR", "1")
    plain = progress_for(Terminal())
    assert isinstance(colored, LiveProgress)
    assert isinstance(plain, LiveProgress)
    assert colored._styled([Text("a", "green"), Text("b")]) == ["\x1b[32ma\x1b[0m", "b"]
    assert plain._styled([Text("a", "green"), Text("b")]) == ["a", "b"]


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_without_a_usable_terminal_progress_is_plain_lines(usual: pytest.MonkeyPatch, name: str, value: str) -> None:
    usual.setenv(name, value)
    assert isinstance(progress_for(Terminal()), PlainProgress)


def test_a_run_from_python_shows_progress_in_a_terminal_or_on_request(usual: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_if_interactive(Terminal()), LiveProgress)
    assert progress_if_interactive(Terminal(), False) is None
    assert progress_if_interactive(io.StringIO()) is None
    assert isinstance(progress_if_interactive(io.StringIO(), True), PlainProgress)


def test_numbers_are_formatted_for_people() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3725)] == ["0 s", "59 s", "1 min 01 s", "1 h 02 min"]
    assert [per_time(rate) for rate in (0, 2.54, 0.05)] == ["0.0/s", "2.5/s", "3.0/min"]
    counts = (0, 999, 1000, 12_345, 99_960, 123_456, 999_400, 999_600, 4_560_000, 7.2e12)
    assert [rounded(count) for count in counts] == [
        "0", "999", "1.00k", "12.3k", "100k", "123k", "999k", "1.00M", "4.56M", "7200G",
    ]  # fmt: skip
    assert [dollars(cost) for cost in (0, 0.00001, 0.01234, 1234.5)] == [
        "$0.0000",
        "less than $0.0001",
        "$0.0123",
        "$1,234.50",
    ]
