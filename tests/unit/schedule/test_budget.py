"""No number of requests in flight spends more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.options.price import FREE, Price
from batch_agent.core.requests import LANES, Lane, Usage
from batch_agent.schedule.budget import Amount, AnswerLimits, Budget, Reservation

PRICE = Price(1e-6, 1e-7, 4e-6)


def test_the_worst_case_of_a_request_must_fit_with_all_reservations() -> None:
    budget = Budget(max_tokens=100)
    first = budget.reserve(Usage(40, 0, 20), FREE)
    assert first is not None
    assert budget.reserve(Usage(30, 0, 20), FREE) is None
    assert not budget.can_never_fit(Usage(30, 0, 20), FREE)
    budget.settle(first, Usage(40, 0, 1))
    assert budget.reserve(Usage(30, 0, 20), FREE) is not None


def test_a_request_that_can_never_fit_is_distinguished_from_one_that_must_wait() -> None:
    budget = Budget(max_tokens=100)
    budget.spend(Usage(60, 0, 10), FREE)
    assert budget.can_never_fit(Usage(21, 0, 10), FREE)
    assert not budget.can_never_fit(Usage(20, 0, 10), FREE)


def test_cached_input_costs_its_own_price() -> None:
    budget = Budget(max_usd=1.0)
    budget.spend(Usage(1000, 400, 10), PRICE)
    assert round(budget.usd, 9) == round(600e-6 + 400e-7 + 40e-6, 9)


def test_each_model_is_paid_at_its_own_price() -> None:
    budget = Budget(max_usd=1.0)
    dear = Price(1e-3, 1e-3, 1e-3)
    cheap, expensive = budget.reserve(Usage(10, 0, 10), PRICE), budget.reserve(Usage(10, 0, 10), dear)
    assert cheap is not None
    assert expensive is not None
    budget.settle(cheap, Usage(10, 0, 10))
    budget.settle(expensive, Usage(10, 0, 10))
    assert round(budget.usd, 9) == round(PRICE.of(Usage(10, 0, 10)) + 0.02, 9)


sizes = st.integers(0, 50)


@given(st.lists(st.tuples(sizes, sizes, st.floats(0, 1), st.booleans()), max_size=60), st.integers(1, 500))
def test_a_budget_is_never_exceeded_in_any_order_of_requests(
    requests: list[tuple[int, int, float, bool]], limit: int
) -> None:
    budget = Budget(max_tokens=limit, max_usd=limit * 2e-6)
    under_way: list[tuple[Reservation, Usage]] = []
    for given_tokens, answer, share, settles in requests:
        worst = Usage(given_tokens, 0, answer)
        if (reserved := budget.reserve(worst, PRICE)) is not None:
            under_way.append((reserved, Usage(given_tokens, 0, int(answer * share))))
        if settles and under_way:
            budget.settle(*under_way.pop(0))
        assert budget.tokens <= limit
        assert budget.usd <= limit * 2e-6 + 1e-12
    for reserved, usage in under_way:
        budget.settle(reserved, usage)
    assert budget.tokens <= limit
    assert budget.usd <= limit * 2e-6 + 1e-12
    assert budget.reserve(Usage(limit + 1, 0, 0), PRICE) is None


REQUESTS = st.lists(st.tuples(st.integers(1, 2_000), st.floats(0, 1), st.booleans(), st.booleans()), max_size=80)


@given(REQUESTS, st.floats(0.001, 1.0), st.integers(1, 200), st.sampled_from(LANES))
def test_a_budget_with_derived_limits_holds_even_if_every_answer_takes_all_of_its_limit(
    requests: list[tuple[int, float, bool, bool]], usd: float, in_flight: int, lane: Lane
) -> None:
    budget, limits, under_way, billed = Budget(max_usd=usd), AnswerLimits(), list[tuple[Reservation, Usage]](), 0.0
    for prompt, share, is_full, settles in requests:
        affordable = budget.answer_tokens(max(in_flight, budget.in_flight + 1), PRICE.of_answer(prompt, lane))
        limit = limits.limit(affordable, 0, float("inf"))
        reserved = budget.reserve(PRICE.worst(prompt, limit, lane=lane), PRICE)
        if reserved is not None:
            answer = limit if is_full else int(limit * share)
            under_way.append((reserved, Usage(prompt, 0, answer).in_lane(lane)))
            billed += PRICE.of_request(under_way[-1][1])
        if settles and under_way:
            done = under_way.pop(0)
            budget.settle(*done)
            limits.observe(done[1].output)
        assert billed <= usd * (1 + 1e-9)
    assert budget.in_flight == len(under_way)


@given(st.lists(st.integers(0, 50_000), max_size=300), st.floats(0, 1e6), st.integers(1, 400_000))
def test_a_derived_limit_covers_what_recent_answers_took(answers: list[int], affordable: float, room: int) -> None:
    limits = AnswerLimits()
    for answer in answers:
        limits.observe(answer)
    longest = max(answers[-256:], default=0) if len(answers) >= 8 else 0
    assert min(room - 63, longest) <= limits.limit(affordable, 0, room) <= room


def test_a_derived_limit_is_what_the_budget_pays_for_all_requests_at_once() -> None:
    limits, budget = AnswerLimits(), Budget(max_usd=10.0)
    assert limits.limit(budget.answer_tokens(50, 10e-6), 0, 400_000) == 4_992
    assert limits.limit(budget.answer_tokens(50, 1e-6), 0, 400_000) == 16_384, "some models refuse more"
    assert limits.limit(budget.answer_tokens(50, 1e-3), 0, 400_000) == 1_024, "a small budget pays few at once"
    assert limits.limit(budget.answer_tokens(50, 1e-3), 3_000, 400_000) == 2_944, "what the schema needs"
    assert limits.limit(budget.answer_tokens(50, 1e-6), 0, 500) == 448, "what fits into the window"
    for _ in range(8):
        limits.observe(100)
    assert limits.limit(budget.answer_tokens(50, 1e-3), 0, 400_000) == 192
    assert limits.limit(budget.answer_tokens(50, 1e-6), 0, 400_000) == 768


def test_a_lower_limit_in_dollars_holds_for_what_was_leased_and_a_higher_one_gives_that_back() -> None:
    budget, request = Budget(max_usd=1.0), Usage(100_000, 0, 0)  # $0.1
    budget.lease(Amount(0, 0.5))
    budget.set_max_usd(0.05)
    assert budget.reserve(request, PRICE) is None
    assert budget.can_never_fit(request, PRICE)
    budget.set_max_usd(2.0)
    assert budget.reserve(request, PRICE) is not None
    assert budget.reserve(Usage(450_000, 0, 0), PRICE) is None  # more than was leased
