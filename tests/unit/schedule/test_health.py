"""When failures are the backend's, and not one agent's."""

import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.schedule.health import Alone, Health, Hold, Stop, Verdict

GONE = BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")
DENIED = BackendError(ErrorKind.AUTH, "no access", status=403)


def verdicts(health: Health, error: BackendError, times: list[float], inflight: int = 4) -> list[Verdict]:
    return [health.failed(error, now, inflight) for now in times]


def test_one_failure_to_connect_is_an_agents_own() -> None:
    health = Health(15)
    assert health.failed(GONE, 0.0, 4) == Alone()
    health.succeeded()
    assert verdicts(health, GONE, [1.0, 2.0]) == [Alone(), Alone()]


def test_a_backend_that_is_gone_is_waited_for_and_then_given_up() -> None:
    health = Health(15)
    *held, last = verdicts(health, GONE, [0.0, 0.1, 0.2, 4.0, 14.9, 15.0])
    assert held == [Alone(), Alone(), Hold(0.5), Hold(2.0), Hold(5.0)]
    assert isinstance(last, Stop)
    assert "Cannot connect" in last.reason


def test_an_answer_starts_the_patience_anew() -> None:
    health = Health(15)
    verdicts(health, GONE, [0.0, 1.0, 2.0])
    health.succeeded()
    assert verdicts(health, GONE, [16.0, 17.0, 18.0])[-1] == Hold(1.0)


def test_without_patience_three_failures_are_enough() -> None:
    assert isinstance(verdicts(Health(0), GONE, [0.0, 0.0, 0.0])[-1], Stop)


def test_a_gateway_that_says_when_to_come_back_is_believed_at_once() -> None:
    busy = BackendError(ErrorKind.UNAVAILABLE, "busy", retry_after=3.0, status=503)
    assert Health(15).failed(busy, 0.0, 4) == Hold(3.0)


def test_a_gateway_that_asks_for_more_than_the_patience_holds_nobody() -> None:
    busy = BackendError(ErrorKind.UNAVAILABLE, "busy", retry_after=600.0, status=503)
    assert Health(15).failed(busy, 0.0, 4) == Alone()


def test_an_error_that_the_server_wrote_itself_shows_that_it_is_there() -> None:
    health = Health(15)
    verdicts(health, GONE, [0.0, 1.0])
    assert health.failed(BackendError(ErrorKind.SERVER, "boom"), 2.0, 4) == Alone()
    assert verdicts(health, GONE, [20.0, 21.0]) == [Alone(), Alone()]


def test_a_wrong_key_is_certain_at_the_first_request() -> None:
    wrong = BackendError(ErrorKind.AUTH, "bad key", status=401)
    verdict = Health(15).failed(wrong, 0.0, 4)
    assert isinstance(verdict, Stop)
    assert "bad key" in verdict.reason


@pytest.mark.parametrize("kind", [ErrorKind.AUTH, ErrorKind.NOT_FOUND])
def test_one_prompt_that_is_refused_does_not_stop_the_others(kind: ErrorKind) -> None:
    health, refused = Health(15), BackendError(kind, "no", status=403)
    for _ in range(10):
        assert verdicts(health, refused, [0.0, 0.0]) == [Alone(), Alone()]
        health.succeeded()


def test_three_refusals_in_a_row_stop_the_run() -> None:
    health = Health(15)
    health.succeeded()
    *_, last = verdicts(health, DENIED, [0.0, 100.0, 200.0])
    assert isinstance(last, Stop)


def test_a_key_that_is_revoked_in_mid_run_stops_it_soon() -> None:
    health, wrong = Health(15), BackendError(ErrorKind.AUTH, "revoked", status=401)
    health.succeeded()
    first, second, third = verdicts(health, wrong, [0.0, 0.0, 0.0])
    assert (first, second) == (Alone(), Alone())
    assert isinstance(third, Stop)


def test_a_server_that_hangs_is_given_up_after_two_rounds() -> None:
    slow = BackendError(ErrorKind.TURN_TIMEOUT, "no answer in 300 s")
    *alone, last = verdicts(Health(15), slow, [300.0 * i for i in range(16)], inflight=8)
    assert alone == [Alone()] * 15
    assert isinstance(last, Stop)
