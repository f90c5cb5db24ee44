"""Limits and retries keep their promises for all numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.errors import RETRYABLE, BackendError, ErrorKind
from batch_agent.core.spec import Retry
from batch_agent.schedule.limit import InflightLimit
from batch_agent.schedule.retry import retry_delay

SECONDS = st.floats(0.0, 1e6)
RETRIES = st.builds(
    lambda most, first, times: Retry(most, first, first * times),
    st.integers(0, 50),
    st.floats(1e-3, 100.0),
    st.floats(1.0, 100.0),
)
EVENTS = st.lists(st.tuples(st.floats(0.0, 5.0), st.none() | st.booleans(), st.none() | SECONDS), max_size=60)


@given(start=st.integers(1, 1500), fixed=st.booleans(), events=EVENTS)
def test_the_limit_stays_in_its_bounds_and_says_whenever_it_changes(
    start: int, fixed: bool, events: list[tuple[float, bool | None, float | None]]
) -> None:
    """An event: so much later, a success (does the limit bind?) or, for None, a refusal (with its Retry-After)."""
    limit = InflightLimit(start, fixed=fixed)
    now, last_cut = 0.0, float("-inf")
    for pause, binds, retry_after in events:
        now += pause
        before = limit.current
        said = limit.refused(now, retry_after) if binds is None else limit.succeeded(limit_binds=binds)
        assert said == (limit.current if limit.current != before else None)
        assert 1 <= limit.current <= (start if fixed else max(start, 1024))
        if limit.current < before:
            assert binds is None
            assert limit.current == before // 2
            assert now - last_cut >= 1.0
            last_cut = now
        elif limit.current > before:
            assert binds is True
            assert limit.current == before + 1


@settings(max_examples=300)
@given(
    retry=RETRIES,
    kind=st.sampled_from(ErrorKind),
    retry_after=st.none() | SECONDS,
    failures=st.integers(1, 5000),
    jitter=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_delay_is_bounded_never_sooner_than_asked_and_only_for_what_can_pass(
    retry: Retry, kind: ErrorKind, retry_after: float | None, failures: int, jitter: float
) -> None:
    delay = retry_delay(retry, BackendError(kind, "no", retry_after=retry_after), failures, jitter)
    if kind not in RETRYABLE or failures > 10 * retry.max_retries:
        assert delay is None
    if delay is None:
        return
    assert 0.0 <= delay <= 300.0 + retry.backoff_max
    assert delay >= (retry_after if retry_after is not None else min(retry.backoff, retry.backoff_max) / 2)
    assert failures <= retry.max_retries * (10 if kind is ErrorKind.RATE_LIMITED else 1)


@given(retry=RETRIES, jitter=st.floats(0.0, 1.0, exclude_max=True))
def test_with_the_same_jitter_a_later_delay_is_never_shorter(retry: Retry, jitter: float) -> None:
    error = BackendError(ErrorKind.SERVER, "no")
    delays = [retry_delay(retry, error, failures, jitter) for failures in range(1, retry.max_retries + 1)]
    numbers = [delay for delay in delays if delay is not None]
    assert len(numbers) == retry.max_retries
    assert numbers == sorted(numbers)
