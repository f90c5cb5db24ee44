"""Limits and retries keep their promises for all numbers."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.errors import RETRYABLE, BackendError, ErrorKind
from batch_agent.core.options import Retry
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.schedule.concurrency_limit import InflightLimit, LimitDecision
from batch_agent.schedule.retry import is_overload_refusal, retry_delay

SECONDS = st.floats(0.0, 1e6)
RETRIES = st.builds(
    lambda most, first, times: Retry(most, first, first * times),
    st.integers(0, 50),
    st.floats(1e-3, 100.0),
    st.floats(1.0, 100.0),
)


@dataclass(frozen=True)
class Answered:
    seconds: float
    binds: bool
    times: int


@dataclass(frozen=True)
class Refused:
    in_service: int


LOADS = st.builds(
    ServerLoad, st.integers(0, 300), st.integers(0, 300), st.none() | st.floats(0.0, 1.0), st.integers(0, 5), st.just(0)
)
EVENTS = st.builds(Answered, st.floats(0.0, 1e3), st.booleans(), st.integers(1, 2000)) | st.builds(
    Refused, st.integers(0, 2000)
)


@pytest.mark.slow
@given(
    start=st.integers(1, 1500),
    fixed=st.booleans(),
    ceiling=st.none() | st.integers(0, 20),
    events=st.lists(st.tuples(st.floats(0.0, 5.0), EVENTS | LOADS), max_size=40),
)
def test_the_concurrency_limit_stays_in_its_bounds_and_reports_every_change(
    start: int, fixed: bool, ceiling: int | None, events: list[tuple[float, Answered | Refused | ServerLoad]]
) -> None:
    """An event comes so much after the one before it."""
    limit = InflightLimit(start, fixed=fixed, queue_ceiling=ceiling)
    now, bound = 0.0, 0
    for pause, event in events:
        now += pause
        for _ in range(event.times if isinstance(event, Answered) else 1):
            before = limit.current
            if isinstance(event, Answered):  # answers that come together find slots free that were in use
                bound = before if event.binds else bound - 1
            said = tell(limit, event, now)
            assert (said.limit if said else before) == limit.current
            assert said is None or (said.reason and said.limit != before)
            assert 1 <= limit.current <= (start if fixed else max(start, 1024))
            if limit.current > before:
                assert isinstance(event, ServerLoad) or (isinstance(event, Answered) and bound > 0)
                assert limit.current <= 2 * before
            elif limit.current < before:
                assert limit.current >= max(1, before // 2) or isinstance(event, ServerLoad)
                if isinstance(event, ServerLoad):
                    assert limit.current >= max(1, min(before, event.running + event.waiting) // 2)


def tell(limit: InflightLimit, event: Answered | Refused | ServerLoad, now: float) -> LimitDecision | None:
    match event:
        case Answered(seconds, binds):
            return limit.on_success(seconds, limit_binds=binds)
        case Refused(in_service):
            return limit.on_overload(now, in_service)
        case ServerLoad():
            return limit.on_load(event, min(limit.current, event.running + event.waiting), now)


@given(
    start=st.integers(1, 1500),
    fixed=st.booleans(),
    events=st.lists(EVENTS | LOADS | st.integers(1, 2000), max_size=20),
)
def test_the_concurrency_limit_never_exceeds_what_the_user_sets_during_the_run(
    start: int, fixed: bool, events: list[Answered | Refused | ServerLoad | int]
) -> None:
    limit, highest = InflightLimit(start, fixed=fixed), start if fixed else max(start, 1024)
    for now, event in enumerate(events):
        before, was_whole = limit.current, limit.current == highest
        if isinstance(event, int):
            said, highest = limit.set_highest(event), event
            assert limit.current == (event if fixed and was_whole else min(before, event))
        else:
            said = tell(limit, event, now)
        assert (said.limit if said else before) == limit.current
        assert 1 <= limit.current <= highest == limit.highest


@given(
    retry=RETRIES,
    kind=st.sampled_from(ErrorKind),
    retry_after=st.none() | SECONDS,
    failures=st.integers(1, 5000),
    jitter=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_retry_delay_is_bounded_honors_retry_after_and_is_for_retryable_errors(
    retry: Retry, kind: ErrorKind, retry_after: float | None, failures: int, jitter: float
) -> None:
    delay = retry_delay(retry, BackendError(kind, "no", retry_after=retry_after), failures, jitter)
    if kind not in RETRYABLE or failures > 10 * retry.max_retries:
        assert delay is None
    if delay is None:
        return
    assert 0.0 <= delay <= 300.0 + retry.backoff_max
    assert delay >= (retry_after if retry_after is not None else min(retry.backoff, retry.backoff_max) / 2)
    is_busy = is_overload_refusal(BackendError(kind, "no", retry_after=retry_after))
    assert failures <= retry.max_retries * (10 if is_busy else 1)


@given(retry=RETRIES, jitter=st.floats(0.0, 1.0, exclude_max=True))
def test_with_the_same_jitter_a_later_delay_is_never_shorter(retry: Retry, jitter: float) -> None:
    error = BackendError(ErrorKind.SERVER, "no")
    delays = [retry_delay(retry, error, failures, jitter) for failures in range(1, retry.max_retries + 1)]
    numbers = [delay for delay in delays if delay is not None]
    assert len(numbers) == retry.max_retries
    assert numbers == sorted(numbers)
