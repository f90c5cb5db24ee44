"""The pace in virtual time: what may be sent when, and what a service's reports change."""

from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.protocols.backend import ServiceLimit
from batch_agent.core.requests import Usage
from batch_agent.schedule.pace import EndpointPaces, Pace

ONE = Usage(10, 0, 10)
ROUNDING = 1e-6


def sent(pace: Pace, requests: int, cost: Usage = ONE, start: float = 0.0) -> list[float]:
    """When each of the requests is sent, if all are ready at once."""
    times, now = list[float](), start
    for _ in range(requests):
        while (ready := pace.ready_at(cost, now)) > now:
            now = ready
        pace.reserve(cost)
        times.append(now)
    return times


def most_in_a_minute(times: list[float]) -> int:
    times = sorted(times)
    return max(bisect_left(times, first + 60 - ROUNDING) - at for at, first in enumerate(times))


@given(st.integers(1, 400), st.integers(1, 500))
def test_no_minute_has_more_requests_than_the_limit(limit: int, requests: int) -> None:
    assert most_in_a_minute(sent(Pace({"requests": limit}), requests)) <= limit


@given(st.integers(2, 300))
def test_the_limit_is_nearly_used_up(limit: int) -> None:
    times = sent(Pace({"requests": limit}), 3 * limit)
    assert times[-1] <= 3 * 60 * 1.02


def test_requests_are_spread_over_the_minute() -> None:
    times = sent(Pace({"requests": 600}), 100)
    assert sum(each < 1 for each in times) <= 20
    assert 8 < times[-1] < 10


@given(st.integers(100, 100_000), st.lists(st.integers(1, 5_000), min_size=1, max_size=100))
def test_tokens_exceed_the_limit_by_no_more_than_one_request(limit: int, sizes: list[int]) -> None:
    pace, now, total = Pace({"tokens": limit}), 0.0, 0
    for size in sizes:
        while (ready := pace.ready_at(Usage(size), now)) > now:
            now = ready
        assert total <= now * limit / 60 + limit / 60 + 1
        pace.reserve(Usage(size))
        total += size


def test_a_request_larger_than_the_limit_is_sent_all_the_same() -> None:
    assert sent(Pace({"tokens": 100}), 2, Usage(1000))[0] == 0.0


def test_a_request_that_is_not_sent_takes_nothing() -> None:
    pace = Pace({"requests": 60})
    sent(pace, 1)
    assert pace.ready_at(ONE, 0.0) > 0.0
    pace.refund(ONE)
    assert pace.ready_at(ONE, 0.0) == 0.0


def test_usage_corrects_an_estimate_that_was_too_low_or_too_high() -> None:
    low, high, right = Pace({"tokens": 600}), Pace({"tokens": 600}), Pace({"tokens": 600})
    for pace, estimate in ((low, Usage(10)), (high, Usage(1000)), (right, Usage(100))):
        pace.ready_at(estimate, 0.0)
        pace.reserve(estimate)
        pace.settle(estimate, Usage(100))
    assert low.ready_at(ONE, 0.0) == high.ready_at(ONE, 0.0) == right.ready_at(ONE, 0.0) > 0.0


def test_the_output_of_a_request_is_learned() -> None:
    pace = Pace({"tokens": 6000})
    assert pace.expected_output(None) == 256
    assert pace.expected_output(2000) == 2000
    pace.settle(ONE, Usage(10, 0, 40))
    assert pace.expected_output(2000) == 40
    assert pace.expected_output(20) == 20


def test_without_options_nothing_is_paced_until_the_service_reports_a_limit() -> None:
    pace = Pace()
    assert sent(pace, 100) == [0.0] * 100
    assert pace.pacing() is None
    pace.report({"requests": ServiceLimit(60, 59, 1.0)}, 0.0)
    assert sent(pace, 3)[-1] == 2.0
    assert str(pace.pacing()) == "60 requests/min (the service's limit)"


def test_a_report_never_raises_an_option() -> None:
    pace = Pace({"requests": 30})
    pace.report({"requests": ServiceLimit(500, 500)}, 0.0)
    assert str(pace.pacing()) == "30 requests/min (as set)"
    pace.report({"requests": ServiceLimit(20, 20)}, 0.0)
    assert str(pace.pacing()) == "20 requests/min (the service's limit)"


def test_a_service_with_little_left_gets_time_to_recover() -> None:
    pace = Pace()
    pace.report({"requests": ServiceLimit(600, 0)}, 0.0)
    recovered = pace.ready_at(ONE, 0.0)
    assert 6 < recovered < 7
    pace.report({"requests": ServiceLimit(600, 500)}, recovered)
    assert pace.ready_at(ONE, recovered) == recovered


def test_a_service_that_counts_over_ten_seconds_reports_little_left_and_is_not_slowed_down() -> None:
    pace = Pace()
    pace.report({"requests": ServiceLimit(120, 9, 5.0)}, 0.0)  # as Azure does: 9 of 20 in this window
    assert pace.ready_at(ONE, 0.0) == 0.0
    pace.report({"requests": ServiceLimit(120, 1, 9.0)}, 0.0)
    assert pace.ready_at(ONE, 0.0) > 0.0


def test_replies_to_requests_without_an_estimate_say_nothing_about_turns() -> None:
    pace = Pace({"tokens": 6000})
    pace.settle(Usage(), Usage(10, 0, 1))
    assert pace.expected_output(None) == 256


def test_a_limit_per_day_is_not_taken_for_one_per_minute() -> None:
    pace = Pace()
    pace.report({"requests": ServiceLimit(200, 190, 4320.0)}, 0.0)
    assert pace.pacing() is None


def test_input_and_output_are_paced_apart_where_the_service_counts_them_apart() -> None:
    pace = Pace()
    pace.report({"input_tokens": ServiceLimit(6000, 6000), "output_tokens": ServiceLimit(600, 600)}, 0.0)
    cached = Usage(1000, 1000, 0)
    assert sent(pace, 5, cached) == [0.0] * 5
    assert sent(pace, 2, Usage(0, 0, 10))[-1] > 0.9
    assert str(pace.pacing()) == "6,000 prompt tokens/min and 600 generated tokens/min (the service's limit)"


def of_endpoints(limits: list[int], available: list[int] | None = None) -> EndpointPaces:
    """Endpoints that have reported requests per minute."""
    paces = EndpointPaces([True] * len(limits), lambda now: range(len(limits)) if available is None else available)
    for endpoint, limit in enumerate(limits):
        paces.report(endpoint, {"requests": ServiceLimit(limit)}, 0.0)
    return paces


def sent_to_endpoints(
    paces: EndpointPaces, requests: int, wishes: Sequence[int], options: int = 0
) -> list[list[float]]:
    """When requests are sent to each endpoint, if all are ready at once. Each goes to the endpoint that it wishes for,
    if its pace allows that."""
    pace = Pace({"requests": options} if options else {}, endpoints=paces)
    times: list[list[float]] = [[] for _ in range(max(wishes) + 1)]
    now = 0.0
    for at in range(requests):
        while (ready := pace.ready_at(ONE, now)) > now:
            now = ready
        pace.reserve(ONE)
        grant, wish = paces.take(), wishes[at % len(wishes)]
        assert grant is not None
        endpoint = grant.endpoint if wish in paces.early(grant, now) else wish
        paces.sent(grant, endpoint)
        times[endpoint].append(now)
    return times


@pytest.mark.slow
@given(st.lists(st.integers(1, 300), min_size=2, max_size=5), st.integers(1, 400), st.data())
def test_no_minute_has_more_requests_at_any_endpoint_than_its_limit(
    limits: list[int], requests: int, data: st.DataObject
) -> None:
    wishes = data.draw(st.lists(st.integers(0, len(limits) - 1), min_size=1, max_size=10))
    times = sent_to_endpoints(of_endpoints(limits), requests, [*wishes, len(limits) - 1])
    for endpoint, limit in zip(times, limits, strict=True):
        assert not endpoint or most_in_a_minute(endpoint) <= limit


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.integers(2, 300), min_size=2, max_size=4))
def test_the_limits_of_all_endpoints_are_nearly_used_up(limits: list[int]) -> None:
    times = sent_to_endpoints(of_endpoints(limits), 3 * sum(limits), range(len(limits)))
    assert max(each[-1] for each in times) <= 3 * 60 * 1.05


def test_options_count_for_all_endpoints_together() -> None:
    times = sent_to_endpoints(of_endpoints([600, 600]), 120, [0, 1], options=60)
    assert most_in_a_minute([*times[0], *times[1]]) <= 60


def test_an_endpoint_that_is_down_grants_nothing() -> None:
    paces = of_endpoints([600, 60], available=[1])
    assert len(sent_to_endpoints(paces, 3, [1])[1]) == 3
    assert paces.ready_at(ONE, 0.0) > 0.0


def test_the_limits_of_the_first_endpoint_that_reports_are_assumed_for_the_others() -> None:
    paces = EndpointPaces([True, True, False], lambda now: [0, 1])
    paces.report(0, {"requests": ServiceLimit(60, 60)}, 0.0)
    times = sent_to_endpoints(paces, 6, [0, 1])
    assert len(times[0]) == len(times[1]) == 3
    assert times[1][-1] > 1.9
    paces.report(1, {"requests": ServiceLimit(6000, 6000)}, 10.0)
    assert sent(Pace(endpoints=paces), 50, start=10.0)[-1] < 11.0
    assert Pace(endpoints=paces).pacing() is None  # the third has no limit
    both = of_endpoints([60, 600])
    assert str(Pace(endpoints=both).pacing()) == "660 requests/min (the service's limit)"


def test_an_endpoint_that_has_not_reported_its_limits_gets_no_burst_by_the_limits_of_another_one() -> None:
    paces = EndpointPaces([True, True], lambda now: [0, 1])
    paces.report(0, {"requests": ServiceLimit(2400, 2400)}, 0.0)
    times = sent_to_endpoints(paces, 80, [1])
    assert times[1].count(0.0) == 1


def test_a_grant_that_is_not_sent_takes_nothing_from_any_endpoint() -> None:
    paces = of_endpoints([60, 60])
    pace = Pace(endpoints=paces)
    for _ in range(2):
        assert pace.ready_at(ONE, 0.0) == 0.0
        pace.reserve(ONE)
    assert pace.ready_at(ONE, 0.0) > 0.0
    pace.refund(ONE)
    assert pace.ready_at(ONE, 0.0) == 0.0


def test_tokens_are_corrected_at_all_endpoints() -> None:
    paces = EndpointPaces([True, True], lambda now: [0, 1])
    for endpoint in (0, 1):
        paces.report(endpoint, {"tokens": ServiceLimit(6000)}, 0.0)
    pace = Pace(endpoints=paces)
    for _ in range(2):
        assert pace.ready_at(Usage(90, 0, 10), 0.0) == 0.0
        pace.reserve(Usage(90, 0, 10))
    assert pace.ready_at(ONE, 0.0) > 0.0
    for _ in range(2):
        pace.settle(Usage(90, 0, 10), Usage(10, 0, 10))
    assert pace.ready_at(ONE, 0.0) == 0.0


@given(st.integers(60, 600), st.integers(1, 8))
def test_workers_together_send_no_more_than_the_limit(limit: int, workers: int) -> None:
    times: list[float] = []
    for _ in range(workers):
        pace = Pace({"requests": limit})
        pace.set_share(1 / workers, 0.0)
        times += sent(pace, 2 * limit // workers)
    assert most_in_a_minute(times) <= limit + workers
