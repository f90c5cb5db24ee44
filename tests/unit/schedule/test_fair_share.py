"""Who gets how much of what is shared, and what is leased of a budget."""

from batch_agent.schedule.budget import Amount
from batch_agent.schedule.fair_share import BudgetClaim, Demand, SlotClaim, allocate, demand_for, fair_shares, lease

ALL = None
"""What a worker wants that is short."""


def claim(
    held: int = 0, wants: int | None = ALL, *, used: int = 0, total: int | None = None, since: float = 0
) -> SlotClaim:
    return SlotClaim(held, used, wants, total, since)


def parts(total: int, *claims: SlotClaim, now: float = 0.0) -> list[int]:
    found = fair_shares({str(number): each for number, each in enumerate(claims)}, total, now)
    return [found[str(number)] for number in range(len(claims))]


def test_workers_with_unmet_demand_get_equal_shares() -> None:
    assert parts(12, claim(), claim(), claim()) == [4, 4, 4]


def test_an_unwanted_share_goes_to_workers_with_unmet_demand() -> None:
    assert parts(12, claim(wants=2), claim(), claim()) == [2, 5, 5]


def test_an_unwanted_rest_is_spread_over_all_workers() -> None:
    assert parts(9, claim(wants=4), claim(wants=0), claim(wants=2)) == [5, 1, 3]


def test_an_idle_worker_keeps_one_slot_where_that_costs_little() -> None:
    assert parts(12, claim(wants=0), claim(wants=0), claim()) == [1, 1, 10]
    assert parts(11, claim(wants=0), claim(wants=0), claim()) == [0, 0, 11]


def test_with_too_few_slots_a_worker_keeps_its_slot_for_a_while() -> None:
    assert parts(1, claim(), claim(1), claim()) == [0, 1, 0]


def test_the_longest_waiting_worker_gets_the_slot_held_longest() -> None:
    said = [claim(1, since=1.0), claim(1, since=0.0), claim(since=2.0), claim(since=3.0)]
    assert parts(2, *said, now=6.9) == [1, 1, 0, 0]
    assert parts(2, *said, now=7.0) == [1, 0, 1, 0]


def test_with_too_few_slots_idle_workers_get_none() -> None:
    assert parts(2, claim(since=0.0, wants=0), claim(), claim(), now=9.0) == [0, 1, 1]


def test_a_worker_gets_no_more_than_is_not_held() -> None:
    said = {"a": claim(7, total=8), "b": claim(0, total=8)}
    assert allocate(said, "a", 0.0) == 4
    assert allocate(said, "b", 0.0) == 1


def test_no_share_is_reduced_while_all_demand_is_met() -> None:
    said = {"a": claim(7, wants=0, total=8), "b": claim(1, wants=1, total=8)}
    assert allocate(said, "a", 0.0) == 7
    assert allocate({**said, "b": claim(1, total=8)}, "a", 0.0) == 1


def test_a_worker_whose_share_is_shrinking_regains_what_is_no_longer_needed() -> None:
    assert allocate({"a": claim(3, used=3, total=4), "b": claim(0, wants=0, total=4)}, "a", 0.0) == 4


def test_after_the_total_shrinks_all_shares_are_reduced_equally() -> None:
    said = {"a": claim(8, total=8), "b": claim(8, total=16)}
    assert [allocate(said, name, 0.0) for name in "ab"] == [4, 4]


def test_without_a_total_nothing_is_limited() -> None:
    assert allocate({"a": claim(), "b": claim()}, "a", 0.0) is None


def test_demand_rises_at_once_and_falls_slowly() -> None:
    assert demand_for(Demand(10, 3, is_short=True), 3) is None
    assert demand_for(Demand(10, 0, is_short=False), 8) == 4
    assert demand_for(Demand(10, 5, is_short=False), 8) == 5


def test_a_little_more_or_less_in_use_changes_nothing() -> None:
    assert [demand_for(Demand(1600, used, is_short=False), 0) for used in (0, 1, 99, 100, 101)] == [
        0,
        100,
        100,
        100,
        200,
    ]


MOST = Amount(1000, float("inf"))


def share(spent: int, leased: int, *, waits: bool = False, is_alive: bool = True) -> BudgetClaim:
    return BudgetClaim(Amount(spent), Amount(leased), waits, is_alive)


def test_a_worker_leases_what_it_needs_and_its_part_of_a_sixteenth_of_the_rest() -> None:
    assert lease(MOST, Amount(100), [share(50, 100)], Amount(100), [Amount(40), Amount(60)]) == (Amount(218), False)


def test_no_budget_is_leased_ahead_while_another_worker_waits() -> None:
    assert lease(MOST, Amount(), [share(50, 100, waits=True)], Amount(100), [Amount(40)]) == (Amount(140), False)
    gone = share(50, 100, waits=True, is_alive=False)
    assert lease(MOST, Amount(), [gone], Amount(100), [Amount(40)]) == (Amount(140 + 47), False)


def test_a_need_that_does_not_fit_is_not_leased_in_part_and_blocks_no_smaller_one() -> None:
    needs = [Amount(90), Amount(101), Amount(10)]
    assert lease(MOST, Amount(), [share(0, 900)], Amount(), needs) == (Amount(100), True)


def test_for_an_unlimited_budget_only_the_need_is_reported() -> None:
    leased, _ = lease(MOST, Amount(), [], Amount(0, 2.0), [Amount(100, 1.0)])
    assert leased == Amount(100 + 56, 3.0)


def test_a_budget_that_was_exceeded_leases_nothing() -> None:
    assert lease(MOST, Amount(2000), [], Amount(10), []) == (Amount(10), False)
