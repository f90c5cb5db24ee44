import io

from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import AgentFinished, AgentStarted, LimitChanged, Notice, RequestRetried, RunStarted
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, CallRecord
from batch_agent.observe.progress import LiveProgress, PlainProgress, duration, progress_for
from batch_agent.observe.summary import summary_lines
from batch_agent.observe.tally import Tally


def a_tally() -> Tally:
    tally = Tally()
    tally.emit(RunStarted("vllm", "m", 8, 3))
    tally.emit(AgentStarted("a", 0))
    tally.emit(AgentStarted("b", 1))
    tally.emit(RequestRetried("a", ErrorKind.SERVER, "boom", 1.0))
    tally.emit(LimitChanged(4, "rate limited"))
    call = CallRecord("f", "{}", True, 0.1)
    tally.emit(AgentFinished(AgentResult(0, "a", usage=Usage(100, 60, 10), tool_calls=(call,)), resumed=False))
    failed = AgentResult(1, "b", error=AgentError(ErrorKind.MAX_TURNS, "no answer"))
    tally.emit(AgentFinished(failed, resumed=False))
    tally.emit(AgentFinished(AgentResult(2, "c"), resumed=True))
    return tally


def test_a_tally_counts_what_happened() -> None:
    tally = a_tally()
    assert (tally.done, tally.ok, tally.failed, tally.resumed, tally.running) == (3, 2, 1, 1, 0)
    assert (tally.retries, tally.inflight, tally.tool_calls) == (1, 4, 1)
    assert tally.failures == {"max_turns": 1}


def test_the_summary_says_what_a_person_wants_to_know() -> None:
    said = "\n".join(summary_lines(a_tally(), 75))
    assert "2 of 3 agents answered in 1 min 15 s (m on vllm)." in said
    assert "1 answers came from the checkpoint" in said
    assert "60% of the input from the prefix cache" in said
    assert "Failed, max_turns: 1. For example: no answer" in said


def test_a_pipe_gets_plain_lines_and_notices_at_once() -> None:
    stream = io.StringIO()
    progress = progress_for(stream)
    assert isinstance(progress, PlainProgress)
    with progress:
        progress.emit(Notice("Starting the embedded model ..."))
    assert stream.getvalue() == "Starting the embedded model ...\n"


def test_a_terminal_gets_one_live_line() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True)
    with LiveProgress(console) as progress:
        progress.emit(Notice("Starting ..."))
        progress.emit(RunStarted("vllm", "m", 8, 3))
        progress.emit(AgentStarted("a", 0))
        progress.emit(AgentFinished(AgentResult(0, "a"), resumed=False))
        console.print(progress._render())
    assert "1 of 3 done" in console.export_text()


def test_durations_are_written_as_people_read_them() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3725)] == ["0 s", "59 s", "1 min 01 s", "1 h 02 min"]
