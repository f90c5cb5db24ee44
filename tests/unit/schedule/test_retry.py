"""What can pass is tried again, later and later; what cannot is not."""

import pytest

from batch_agent.core.errors import RETRYABLE, BackendError, ErrorKind
from batch_agent.core.options import Retry
from batch_agent.schedule.retry import retry_delay

RETRY = Retry(max_retries=3, backoff=0.5, backoff_max=30.0)


def failed(kind: ErrorKind = ErrorKind.SERVER, retry_after: float | None = None) -> BackendError:
    return BackendError(kind, "no", retry_after=retry_after)


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - RETRYABLE))
def test_a_permanent_failure_is_not_retried(kind: ErrorKind) -> None:
    assert retry_delay(RETRY, failed(kind), 1, 0.0) is None
    assert retry_delay(RETRY, failed(kind, retry_after=1.0), 1, 0.0) is None


@pytest.mark.parametrize("kind", sorted(RETRYABLE - {ErrorKind.RATE_LIMITED}))
def test_a_failure_is_tried_again_as_often_as_allowed(kind: ErrorKind) -> None:
    assert [retry_delay(RETRY, failed(kind), failures, 0.0) for failures in (1, 2, 3, 4)] == [0.25, 0.5, 1.0, None]


def test_a_busy_server_is_tried_ten_times_as_often() -> None:
    busy = failed(ErrorKind.RATE_LIMITED)
    assert retry_delay(RETRY, busy, 30, 0.0) == 15.0
    assert retry_delay(RETRY, busy, 31, 0.0) is None


@pytest.mark.parametrize("kind", sorted(RETRYABLE))
def test_without_retries_nothing_is_tried_again(kind: ErrorKind) -> None:
    assert retry_delay(Retry(max_retries=0), failed(kind), 1, 0.0) is None


@pytest.mark.parametrize(
    ("failures", "jitter", "delay"),
    [(1, 0.0, 0.25), (1, 0.5, 0.375), (1, 1.0, 0.5), (2, 0.0, 0.5), (5, 0.0, 4.0), (7, 0.0, 15.0), (100, 1.0, 30.0)],
)
def test_the_delay_doubles_up_to_its_maximum_and_is_spread(failures: int, jitter: float, delay: float) -> None:
    assert retry_delay(Retry(max_retries=100), failed(), failures, jitter) == delay


def test_a_failure_among_answers_is_tried_again_sooner() -> None:
    delays = [retry_delay(RETRY, failed(), failures, 0.0, others_succeed=True) for failures in (1, 2, 3, 4)]
    assert delays == [0.05, 0.1, 0.2, None]


def test_a_lone_refusal_waits_for_what_the_server_asked_and_hardly_longer() -> None:
    assert retry_delay(RETRY, failed(ErrorKind.RATE_LIMITED, 0.1), 1, 1.0, others_succeed=True) == pytest.approx(0.2)
    assert retry_delay(RETRY, failed(ErrorKind.RATE_LIMITED, 7.0), 1, 0.0, others_succeed=True) == 7.0
    assert retry_delay(RETRY, failed(ErrorKind.RATE_LIMITED), 1, 0.0, others_succeed=True) == 0.25


def test_random_refusals_do_not_make_the_delay_grow_for_long() -> None:
    busy = failed(ErrorKind.RATE_LIMITED)
    delays = [retry_delay(RETRY, busy, failures, 1.0, others_succeed=True) for failures in (1, 2, 3, 4, 10)]
    assert delays == [0.5, 1.0, 2.0, 2.0, 2.0]


def test_the_delay_stays_a_number_however_often_it_failed() -> None:
    assert retry_delay(Retry(max_retries=10_000), failed(ErrorKind.RATE_LIMITED), 100_000, 1.0) == 30.0


@pytest.mark.parametrize(
    ("retry_after", "jitter", "delay"),
    [(0.0, 0.0, 0.0), (0.0, 1.0, 0.5), (7.0, 0.0, 7.0), (7.0, 0.5, 7.25), (300.0, 0.0, 300.0)],
)
def test_the_servers_own_retry_after_is_kept(retry_after: float, jitter: float, delay: float) -> None:
    assert retry_delay(RETRY, failed(ErrorKind.RATE_LIMITED, retry_after), 1, jitter) == delay
    assert retry_delay(RETRY, failed(ErrorKind.SERVER, retry_after), 1, jitter) == delay


@pytest.mark.parametrize("retry_after", [300.1, 86_400.0, float("inf")])
def test_a_server_that_asks_for_too_long_a_wait_is_given_up_on_rather_than_disturbed_sooner(retry_after: float) -> None:
    assert retry_delay(RETRY, failed(ErrorKind.RATE_LIMITED, retry_after), 1, 0.0) is None
