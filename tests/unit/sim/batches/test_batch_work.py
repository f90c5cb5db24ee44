"""The work of a simulated batch, however the clock goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim.batches.armed_faults import ArmedFault, BatchFault
from batch_agent.sim.batches.batch_work import BatchWork, Outcome, WorkLine

ORDER = ("validating", "in_progress", "finalizing", "cancelling", "completed", "expired", "cancelled")
FAULTS = (None, BatchFault.EXPIRED, BatchFault.ERRORED, BatchFault.MISSING)


def work_of(lines: int, fault: ArmedFault | None = None, seconds: float = 100.0) -> BatchWork:
    return BatchWork(
        [WorkLine(str(at), {}) for at in range(lines)], lambda _: Outcome("succeeded"), 0.0, seconds, fault
    )


@given(st.integers(0, 30), st.lists(st.floats(0, 60), max_size=8), st.sampled_from(FAULTS), st.floats(0, 1))
def test_a_batch_ends_the_same_whenever_it_is_looked_at(
    lines: int, steps: list[float], kind: BatchFault | None, share: float
) -> None:
    fault = None if kind is None else ArmedFault(kind, share)
    once, often = work_of(lines, fault), work_of(lines, fault)
    now, seen = 0.0, 0
    for step in steps:
        now += step
        often.advance(now)
        assert len(often.outcomes) >= seen
        seen = len(often.outcomes)
    for work in (once, often):
        work.advance(max(now, 100.0))
    assert once.outcomes == often.outcomes
    assert len(once.outcomes) == lines
    assert [start.phase for start in once.history] == [start.phase for start in often.history]
    times = [start.at for start in often.history]
    assert times == sorted(times)
    assert [ORDER.index(start.phase) for start in often.history] == sorted(
        ORDER.index(start.phase) for start in often.history
    )


@given(st.integers(0, 30), st.floats(0, 99), st.floats(0, 100))
def test_cancelling_keeps_what_was_done_and_executes_nothing_more(lines: int, at: float, later: float) -> None:
    work = work_of(lines)
    work.cancel(at)
    done = len(work.outcomes)
    work.advance(at + later)
    work.advance(1000.0)
    assert work.phase == "cancelled"
    kinds = [outcome.kind for outcome in work.outcomes]
    assert kinds == ["succeeded"] * done + ["cancelled"] * (lines - done)


@given(st.integers(0, 200), st.floats(0, 1))
def test_a_fault_affects_its_share_of_the_lines_rounded_up(lines: int, share: float) -> None:
    fault = ArmedFault(BatchFault.ERRORED, share)
    assert sum(map(fault.affects, range(lines))) == fault.count(lines)
    assert fault.count(lines) == pytest.approx(lines * share, abs=1)


def test_a_batch_without_time_ends_at_once() -> None:
    work = work_of(3, seconds=0.0)
    work.advance(0.0)
    assert (work.phase, len(work.outcomes)) == ("completed", 3)
