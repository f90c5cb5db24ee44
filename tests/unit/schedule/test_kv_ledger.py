"""Places in the KV cache: who is let in, who gives a place up, and what the server's own word changes."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from batch_agent.schedule.estimators import _TOLERANCE_TOKENS
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.schedule.kv_tiers import HEADROOM
from batch_agent.schedule.residency_leases import ResidencyLeases


def ledger(
    limit: int | None = 1000, *, speed: float | None = None, grown: bool = True, shared: float = 0.0
) -> KvLedger:
    """One that may hold so much, and whose agents are known not to grow unless told otherwise. A place is worth
    limit / speed seconds."""
    made = KvLedger(None if limit is None else round(limit / HEADROOM), shared)
    made._limit = None if limit is None else float(limit)
    made.prefill_speed.tokens_per_second = speed
    if grown:
        made._context_growth.finished = 1
    return made


def enter(places: KvLedger, *agents: str, size: float = 100.0, now: float = 0.0) -> list[bool]:
    for agent in agents:
        places.register(agent, size)
    return [places.admit(agent, now) for agent in agents]


def inside(places: KvLedger, agents: str) -> str:
    return "".join(agent for agent in agents if places.is_resident(agent))


class CountingDict(dict[str, Any]):
    """Counts how often somebody is looked at."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        self.looks += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.looks += 1
            yield key

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        return (self[key] for key in super().__iter__())


def test_agents_are_let_in_while_they_fit() -> None:
    places = ledger(300)
    assert enter(places, *"abcd") == [True, True, True, False]
    assert (places.residents, places.reserved_tokens) == (3, 300)
    places.remove("b")
    assert places.admit("d", 0.0)
    assert inside(places, "abcd") == "acd"


def test_some_of_the_capacity_is_left_to_what_ended_agents_leave_behind() -> None:
    places = KvLedger(1000)
    assert places.limit == 1000 * HEADROOM < 1000


def test_the_shared_prefix_is_counted_once() -> None:
    places = ledger(300, shared=100)
    assert enter(places, *"abc") == [True, True, False]


def test_nothing_is_limited_where_no_capacity_is_known() -> None:
    places = ledger(None)
    assert all(enter(places, *"abcdefghij", size=1e9))
    assert places.limit is None
    assert places.lease_seconds is None
    places.pause("a", 0.0, 1e9)
    assert places.next_lease_end() is None


def test_a_lone_agent_of_any_size_is_admitted_and_no_other_with_it() -> None:
    places = ledger(100)
    assert enter(places, "a", size=5000) == [True]
    assert enter(places, "b", size=0) == [False]
    places.remove("a")
    assert places.admit("b", 0.0)


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_cache_that_holds_nothing_still_lets_one_in_at_a_time(capacity: int) -> None:
    places = ledger(capacity)
    assert enter(places, *"ab") == [True, False]


def test_admitting_an_agent_twice_counts_it_once() -> None:
    places = ledger(300)
    enter(places, "a")
    assert places.admit("a", 0.0)
    assert places.admit("a", 0.0, overcommit=True)
    assert (places.residents, places.reserved_tokens, places.counts.overcommitted) == (1, 100, 0)


def test_before_any_has_grown_each_is_taken_to_grow_by_a_quarter() -> None:
    places = ledger(500, grown=False)
    assert enter(places, *"abcde") == [True, True, True, True, False]
    assert places.reserved_tokens == 500


def test_a_newcomer_that_is_bigger_than_the_others_is_taken_to_grow_as_a_big_one() -> None:
    places = ledger(1100, grown=False)
    enter(places, "a", size=100)
    assert enter(places, "b", size=900) == [False]


def test_agents_are_expected_to_grow_as_those_before_them_did() -> None:
    places = ledger(1000, grown=False)
    enter(places, "a")
    places.on_usage("a", 100, 0, 10, has_waiters=False)
    places.on_usage("a", 450, 100, 50, has_waiters=False)
    places.remove("a")
    assert places.growth == 400
    assert enter(places, *"bcd") == [True, True, False]


def test_one_that_never_answered_says_nothing_of_how_agents_grow() -> None:
    places = ledger(grown=False)
    enter(places, *"ab")
    places.on_usage("a", 100, 0, 300, has_waiters=False)
    places.remove("b")
    assert places.growth == 300
    places.remove("a")
    assert places.growth == 300


def test_the_growth_of_long_ago_is_forgotten() -> None:
    places = ledger(10_000, grown=False)
    for number in range(500):
        enter(places, "a")
        places.on_usage("a", 100, 0, 1000 if number < 100 else 0, has_waiters=False)
        places.remove("a")
    assert places.growth < 1


def test_the_size_is_what_the_server_counts() -> None:
    places = ledger(1000, shared=50)
    enter(places, "a", size=600)
    places.on_usage("a", 200, 0, 30, has_waiters=False)
    assert places.reserved_tokens == 230
    assert places.tokens("a") == 230
    places.on_usage("a", 400, 200, 10, has_waiters=False)
    assert places.reserved_tokens == 410


def test_a_server_that_counts_no_tokens_leaves_the_estimate_as_it_was() -> None:
    places = ledger(300)
    enter(places, *"abc")
    for agent in "abc":
        places.on_usage(agent, 0, 0, 0, has_waiters=True)
    assert places.reserved_tokens == 300
    assert enter(places, "d") == [False]
    assert places.tokens("a") == 0


def test_a_prompt_smaller_than_what_is_shared_takes_at_least_something() -> None:
    places = ledger(300, shared=200)
    enter(places, *"ab", size=10)
    places.on_usage("a", 20, 0, 0, has_waiters=False)
    places.on_usage("b", 20, 0, 100, has_waiters=False)
    assert places.reserved_tokens >= 202
    places.remove("a")
    places.remove("b")
    assert places.reserved_tokens == 200


def test_a_conversation_that_was_summarized_takes_less_again() -> None:
    places = ledger(1000)
    enter(places, "a")
    places.on_usage("a", 900, 0, 10, has_waiters=False)
    places.on_usage("a", 100, 90, 10, has_waiters=False)
    assert enter(places, "b", size=10) == [True]
    places.remove("a")
    assert places.reserved_tokens >= places._own


def test_a_resident_that_waits_for_tools_keeps_residency_until_its_lease_expires() -> None:
    places = ledger(200, speed=100)
    enter(places, *"ab")
    places.pause("a", 10.0, None)
    places.register("c", 100)
    assert places.next_lease_end() == 12
    assert not places.admit("c", 11.99)
    assert places.admit("c", 12.0)
    assert inside(places, "abc") == "bc"
    assert places.counts.evictions == 1
    assert places.next_lease_end() is None


def test_residency_is_released_only_if_another_agent_needs_it() -> None:
    places = ledger(200, speed=100)
    enter(places, "a")
    places.pause("a", 0.0, 1000.0)
    assert enter(places, "b", now=1e6) == [True]
    assert inside(places, "ab") == "ab"
    places.resume("a")
    assert places.is_resident("a")


def test_a_tool_wait_known_to_be_long_releases_residency_at_once() -> None:
    places = ledger(200, speed=100)
    enter(places, *"ab")
    places.pause("a", 0.0, 2.01)
    places.register("c", 100)
    assert places.admit("c", 0.0)
    assert inside(places, "abc") == "bc"


def test_a_wait_that_is_likely_as_long_as_the_lease_is_worth_it() -> None:
    places = ledger(200, speed=100)
    enter(places, *"ab")
    places.pause("a", 0.0, 2.0)
    places.register("c", 100)
    assert not places.admit("c", 1.9)


def test_without_a_known_speed_residency_is_kept_for_any_tool_wait() -> None:
    places = ledger(100)
    enter(places, "a")
    places.pause("a", 0.0, 1e9)
    assert enter(places, "b", now=1e12) == [False]
    assert places.next_lease_end() is None


def test_an_agent_that_returns_within_its_lease_cannot_lose_residency() -> None:
    places = ledger(200, speed=100)
    enter(places, *"ab")
    places.pause("a", 0.0, None)
    places.resume("a")
    assert enter(places, "c", now=100.0) == [False]
    assert places.next_lease_end() is None


def test_an_agent_that_lost_residency_is_admitted_again() -> None:
    places = ledger(200, speed=100)
    enter(places, *"ab")
    places.pause("a", 0.0, None)
    enter(places, "c", now=5.0)
    places.resume("a")
    assert not places.admit("a", 6.0)
    places.remove("b")
    assert places.admit("a", 6.0)
    assert (places.residents, places.reserved_tokens) == (2, 200)


def test_the_longest_overdue_goes_first_and_no_more_than_needed() -> None:
    places = ledger(300, speed=100)
    enter(places, *"abc")
    for now, agent in enumerate("bac"):
        places.pause(agent, float(now), None)
    enter(places, "d", now=50.0)
    assert inside(places, "abcd") == "acd"


def test_overdue_residents_stay_if_evicting_them_is_not_enough() -> None:
    places = ledger(300, speed=100)
    enter(places, *"abc")
    places.pause("a", 0.0, None)
    assert enter(places, "d", size=150, now=50.0) == [False]
    assert inside(places, "abcd") == "abc"
    assert (places.reserved_tokens, places.counts.evictions) == (300, 0)
    places.remove("b")
    assert places.admit("d", 50.0)
    assert inside(places, "abcd") == "cd"


def test_overdue_places_that_are_not_enough_for_who_will_still_grow_are_kept() -> None:
    places = ledger(1000, speed=100, grown=False)
    enter(places, *"abcd", size=100)
    places.on_usage("a", 100, 0, 100, has_waiters=False)
    places.pause("b", 0.0, None)
    assert enter(places, "e", size=500, now=50.0) == [False]
    assert inside(places, "abcde") == "abcd"
    places.remove("c")
    assert places.admit("e", 50.0)
    assert inside(places, "abcde") == "ade"


def test_a_lease_that_is_over_is_not_announced_again() -> None:
    places = ledger(300, speed=100)
    enter(places, *"abc")
    places.pause("a", 0.0, None)
    places.pause("b", 40.0, None)
    assert enter(places, "d", size=250, now=42.0) == [False]
    assert places.next_lease_end() == 43


def test_a_big_agent_that_nobody_is_busy_beside_gets_all_overdue_places() -> None:
    places = ledger(300, speed=100)
    enter(places, *"abc")
    for agent in "abc":
        places.pause(agent, 0.0, None)
    assert enter(places, "d", size=9999, now=3.0) == [True]
    assert inside(places, "abcd") == "d"
    assert places.counts.evictions == 3


def test_an_overcommitted_agent_is_admitted_beyond_the_capacity() -> None:
    places = ledger(200)
    enter(places, *"abc")
    assert places.admit("c", 0.0, overcommit=True)
    assert (places.residents, places.reserved_tokens, places.counts.overcommitted) == (3, 300, 1)
    assert places.counts.max_residents == 3


def test_an_agent_that_fits_is_not_overcommitted() -> None:
    places = ledger(200)
    places.register("a", 100)
    assert places.admit("a", 0.0, overcommit=True)
    assert (places.counts.overcommitted, places._overcommitted_tokens) == (0, 0)


def test_an_overcommitted_agent_evicts_no_resident() -> None:
    places = ledger(200)
    enter(places, *"abc")
    places.pause("b", 0.0, None)
    places.admit("c", 0.0, overcommit=True)
    places.on_usage("c", 5000, 0, 0, has_waiters=False)
    places.on_usage("c", 9000, 5000, 0, has_waiters=False)
    assert inside(places, "abc") == "abc"
    places.on_usage("a", 150, 0, 0, has_waiters=False)
    assert inside(places, "abc") == "ac"


def test_an_overcommitted_agent_stays_so_until_it_loses_residency() -> None:
    places = ledger(200, speed=100)
    enter(places, *"abc")
    places.admit("c", 0.0, overcommit=True)
    places.remove("a")
    places.on_usage("c", 100, 0, 0, has_waiters=False)
    assert places._overcommitted_tokens == 100
    assert enter(places, "d") == [False]  # its context is there all the same
    places.pause("c", 0.0, 1e9)
    assert places.admit("d", 0.0)
    assert inside(places, "bcd") == "bd"
    places.resume("c")
    places.remove("b")
    assert places.admit("c", 0.0)
    assert places._overcommitted_tokens == 0
    assert places.counts.overcommitted == 1


def test_so_many_contexts_fit_as_are_like_those_of_the_residents() -> None:
    places = ledger(1000, shared=100)
    assert places.max_concurrent(5000) is None
    enter(places, "a", size=200)
    enter(places, "b", size=400)
    assert places.max_concurrent(2000) == math.ceil((HEADROOM * 2000 - 100) / 300) == 6
    places.on_usage("a", 900, 0, 0, has_waiters=False)
    assert places.max_concurrent(2000) == 3
    assert places.max_concurrent(50) == places.max_concurrent(0) == 1


def test_contexts_that_grow_beyond_the_capacity_take_the_places_of_the_youngest_that_wait() -> None:
    places = ledger(400)
    enter(places, *"abcd")
    for agent in "abd":
        places.pause(agent, 0.0, None)
    places.on_usage("c", 150, 0, 30, has_waiters=False)
    assert inside(places, "abcd") == "abc"
    places.on_usage("c", 300, 0, 0, has_waiters=False)
    assert inside(places, "abcd") == "ac"
    places.on_usage("c", 5000, 0, 0, has_waiters=False)
    assert inside(places, "abcd") == "c"
    assert places.counts.evictions == 3


def test_an_agent_in_a_turn_cannot_lose_residency_by_growth_of_others() -> None:
    places = ledger(200)
    enter(places, *"ab")
    places.on_usage("a", 5000, 0, 0, has_waiters=True)
    assert inside(places, "ab") == "ab"


def test_an_agent_evicted_by_growth_is_not_evicted_twice() -> None:
    places = ledger(300, speed=100)
    enter(places, *"abc")
    places.pause("a", 0.0, None)
    places.register("d", 250)
    assert not places.admit("d", 100.0)
    places.on_usage("b", 280, 0, 0, has_waiters=True)
    assert inside(places, "abcd") == "bc"
    assert not places.admit("d", 200.0)
    assert (places.residents, places.reserved_tokens) == (2, 380)


def test_turns_that_lost_their_context_shrink_the_limit_and_clean_ones_grow_it_back() -> None:
    places = ledger(10_000)
    enter(places, *"ab")
    for agent in "ab":
        places.on_usage(agent, 4000, 10, 0, has_waiters=True)
    for _ in range(8):
        places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert places.limit == pytest.approx(7600)
    assert places.cache_misses.total == 8
    for _ in range(8 * 20):
        places.on_usage("a", 4000, 4000, 0, has_waiters=True)
    assert places.limit == pytest.approx(10_000, rel=0.01)


def test_the_limit_does_not_grow_while_nobody_wants_in() -> None:
    places = ledger(10_000)
    enter(places, *"ab")
    for cached in (10, *[0] * 8):
        places.on_usage("a", 4000, cached, 0, has_waiters=True)
    shrunk = places.limit
    assert shrunk is not None
    assert shrunk < 9000
    for _ in range(100):
        places.on_usage("a", 4000, 4000, 0, has_waiters=False)
    assert places.limit == shrunk


def test_the_limit_does_not_grow_beyond_its_part_of_the_capacity() -> None:
    places = ledger(10_000)
    enter(places, *"ab")
    for _ in range(100):
        places.on_usage("a", 4000, 4000, 0, has_waiters=True)
    assert places.limit == pytest.approx(10_000, rel=1e-3)


def test_a_few_tokens_less_than_half_are_no_loss() -> None:
    places = ledger(10_000)
    enter(places, "a")
    places.on_usage("a", 4000, 10, 0, has_waiters=True)
    places.on_usage("a", 4000, 2000 - _TOLERANCE_TOKENS, 0, has_waiters=True)
    assert places.cache_misses.total == 0
    places.on_usage("a", 4000, 2000 - _TOLERANCE_TOKENS - 1, 0, has_waiters=True)
    assert places.cache_misses.total == 1


def test_a_context_that_is_hardly_longer_than_a_few_blocks_cannot_be_lost() -> None:
    places = ledger(10_000)
    enter(places, "a")
    for cached in (1, 0, 0):
        places.on_usage("a", 2 * _TOLERANCE_TOKENS, cached, 0, has_waiters=True)
    assert places.cache_misses.total == 0


def test_a_server_that_reports_no_cache_at_all_is_not_taken_to_lose_everything() -> None:
    places = ledger(10_000)
    enter(places, "a")
    for _ in range(100):
        places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert places.limit == 10_000
    assert places.cache_misses.total == 0


def test_a_server_that_reports_more_cached_than_there_was_loses_nothing() -> None:
    places = ledger(10_000)
    enter(places, "a")
    for _ in range(100):
        places.on_usage("a", 4000, 10**9, 0, has_waiters=True)
    assert places.limit == pytest.approx(10_000, rel=0.01)
    assert (places.cache_misses.total, places.reserved_tokens) == (0, 4000)


def test_without_a_known_capacity_losses_show_it() -> None:
    places = ledger(None)
    enter(places, *"abcd")
    for agent in "abcd":
        places.on_usage(agent, 5000, 10, 0, has_waiters=False)
    for _ in range(8):
        places.on_usage("a", 5000, 0, 0, has_waiters=False)
    assert places.limit == pytest.approx(18_000)
    assert enter(places, "e") == [False]


@pytest.mark.parametrize("as_guest", [True, False])
def test_cache_misses_of_overcommitted_or_readmitted_agents_are_no_loss(as_guest: bool) -> None:
    places = ledger(4000, speed=100)
    enter(places, "a", size=4000)
    places.on_usage("a", 4000, 1, 0, has_waiters=False)
    places.pause("a", 0.0, 1e9)
    enter(places, "b", size=4000)
    places.resume("a")
    if not as_guest:
        places.remove("b")
    assert places.admit("a", 0.0, overcommit=as_guest)
    places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert places.cache_misses.total == 0
    places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert places.cache_misses.total == 1


def test_losses_with_overcommitted_agents_are_counted_and_do_not_shrink_the_limit() -> None:
    places = ledger(10_000)
    enter(places, *"ab", size=4000)
    enter(places, "guest", size=4000)
    for agent in "ab":
        places.on_usage(agent, 4000, 10, 0, has_waiters=True)
    places.admit("guest", 0.0, overcommit=True)
    for _ in range(20):
        places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert (places.cache_misses.total, places.limit) == (20, 10_000)
    places.remove("guest")
    places.on_usage("a", 4000, 0, 0, has_waiters=True)  # what a guest pushed out shows after it has gone
    for _ in range(7):
        places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert (places.cache_misses.total, places.limit) == (28, 10_000)
    places.on_usage("a", 4000, 0, 0, has_waiters=True)
    assert places.limit == pytest.approx(7600)


def test_after_overcommitted_agents_leave_losses_shrink_the_limit_again() -> None:
    places = ledger(10_000)
    enter(places, *"ab", size=5000)
    for agent in "ab":
        places.on_usage(agent, 5000, 10, 0, has_waiters=True)
    guests = {"x": 1000.1, "y": 1000.2, "z": 1000.3}
    for guest, size in guests.items():
        places.register(guest, size)
        assert places.admit(guest, 0.0, overcommit=True)
    assert places.counts.overcommitted == 3
    for guest in guests:
        places.remove(guest)
    for _ in range(9):
        places.on_usage("a", 5000, 0, 0, has_waiters=True)
    assert places.limit == pytest.approx(9500)


def test_a_context_that_is_lost_shows_even_where_most_of_the_prompt_is_shared() -> None:
    places = ledger(20_000, shared=6000)
    enter(places, "a", size=3000)
    places.on_usage("a", 9000, 6000, 0, has_waiters=True)
    places.on_usage("a", 9000, 6000, 0, has_waiters=True)
    assert places.cache_misses.total == 1


def test_a_resident_that_is_alone_and_finds_nothing_is_no_reason_to_shrink_without_end() -> None:
    places = ledger(10_000)
    enter(places, "a")
    for cached in (10, *[0] * 1000):
        places.on_usage("a", 4000, cached, 0, has_waiters=True)
    assert places.cache_misses.total == 1000
    assert places.limit == 10_000


def test_leaving_twice_or_without_having_come_is_harmless() -> None:
    places = ledger(200)
    enter(places, *"ab")
    places.remove("b")
    places.remove("b")
    places.remove("nobody")
    assert (places.residents, places.reserved_tokens) == (1, 100)


def test_one_that_leaves_while_it_waits_for_a_place_or_its_tools_leaves_nothing_behind() -> None:
    places = ledger(200, speed=100)
    enter(places, *"abc")
    places.pause("a", 0.0, None)
    places.pause("b", 0.0, 1e9)
    for agent in "cba":
        places.remove(agent)
    assert (places.residents, places.reserved_tokens) == (0, 0)
    assert (len(places._agents), places._leases) == (0, ResidencyLeases())


def test_a_million_tool_waits_leave_nothing_behind() -> None:
    places = ledger(10**9, speed=100)
    enter(places, *"abc")
    for number in range(20_000):
        for agent in "abc":
            places.pause(agent, float(number), 1e9 if number % 2 else None)
        for agent in "abc":
            places.resume(agent)
    assert places._leases == ResidencyLeases()


def many_waiting(agents: int) -> KvLedger:
    """So many residents that are overdue, and two busy ones that hold half of everything."""
    places = ledger(200 * agents, speed=1e9)
    count(places)
    enter(places, "busy", "busier", size=50.0 * agents)
    for number in range(agents):
        enter(places, str(number))
        places.pause(str(number), 0.0, None)
    return places


def count(places: KvLedger) -> None:
    places._agents = CountingDict()
    places._leases = ResidencyLeases(_active=CountingDict(), _expired=CountingDict())


def looks(places: KvLedger) -> int:
    seen = 0
    for agents in (places._agents, places._leases._active, places._leases._expired):
        assert isinstance(agents, CountingDict)
        seen, agents.looks = seen + agents.looks, 0
    return seen


def test_asking_in_vain_costs_the_same_however_many_are_overdue() -> None:
    costs = []
    for agents in (100, 10_000):
        places = many_waiting(agents)
        places.register("huge", 150.0 * agents)
        assert not places.admit("huge", 1e6)  # each lease that is over is looked at once
        looks(places)
        assert not places.admit("huge", 1e6)
        costs.append(looks(places))
    assert costs[1] <= 2 * costs[0]


def test_ten_thousand_agents_cost_as_much_each_as_a_hundred() -> None:
    costs = []
    for agents in (100, 10_000):
        places = ledger(100 * agents // 2, speed=1e9)
        count(places)
        for number in range(agents):
            enter(places, str(number), now=float(number))
            if places.is_resident(str(number)):
                places.on_usage(str(number), 100, 1, 0, has_waiters=True)
                places.pause(str(number), float(number), None)
        for number in range(agents):
            places.resume(str(number))
            places.admit(str(number), 1e9)
            places.remove(str(number))
        costs.append(looks(places) / agents)
    assert costs[1] <= 2 * costs[0]


def test_a_context_that_was_rewritten_is_smaller_and_not_lost() -> None:
    places = ledger(3_000)
    enter(places, "a", "b", size=200)
    for agent in "ab":
        places.on_usage(agent, 200, 100, 0, has_waiters=False)
        places.on_usage(agent, 1_400, 200, 50, has_waiters=False)
    assert places.reserved_tokens == 2_900
    places.on_compaction("a", 600)
    assert (places.reserved_tokens, places.tokens("a")) == (2_050, 600)
    places.on_usage("a", 800, 0, 10, has_waiters=False)
    assert places.cache_misses.total == 0
    places.on_usage("a", 1_200, 0, 10, has_waiters=False)
    assert places.cache_misses.total == 1, "the turn after it is judged like any other"


def test_a_rewritten_context_that_is_no_smaller_keeps_its_size() -> None:
    places = ledger(3_000)
    enter(places, "a", size=500)
    places.on_compaction("a", 900)
    assert places.reserved_tokens == 500


def test_room_that_a_rewritten_context_leaves_goes_to_the_next() -> None:
    places = ledger(300)
    enter(places, "a", "b", size=200)
    assert inside(places, "ab") == "a"
    places.on_usage("a", 290, 0, 0, has_waiters=True)
    places._agents["a"].first, places._first = 50, 50
    places.on_compaction("a", 90)
    assert places.admit("b", 0.0)


def test_residents_have_room_for_more_of_their_own_until_the_limit() -> None:
    places = ledger(1000, shared=100)
    enter(places, *"ab", size=200)
    assert places.fits_each(250)
    assert not places.fits_each(251)
    assert ledger(None).fits_each(10**9)
