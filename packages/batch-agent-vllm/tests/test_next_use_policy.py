"""Order in which blocks leave the host tier."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent_vllm.hints import Hints
from batch_agent_vllm.next_use_policy import MAX_SESSIONS, NextUsePolicy

TOKENS = 16


class Tier:
    """Drives the policy as vLLM's manager does; transfers complete at once."""

    def __init__(self, *, is_exclusive: bool = False) -> None:
        self.policy: NextUsePolicy[str] = NextUsePolicy(is_exclusive=is_exclusive)
        self.requests = 0

    def begin(self, hints: Hints, blocks: list[str], now: float) -> str:
        self.requests += 1
        request = f"r{self.requests}"
        self.policy.arrive(request, hints, now)
        self.policy.run(request, hints, now)
        new = [block for block in blocks if block not in self.policy]
        for block in new:
            self.policy.add(block)
        self.policy.touch(request, hints, positions(blocks), now)
        for block in new:
            self.policy.unpin(block)
        return request

    def request(self, hints: Hints, blocks: list[str], now: float = 0.0) -> None:
        self.policy.finish(self.begin(hints, blocks, now), hints, now)

    def victims(self, count: int, now: float = 0.0) -> list[str]:
        victims = self.policy.evict(count, (), now)
        assert victims is not None
        return victims


def positions(blocks: list[str]) -> list[tuple[str, int]]:
    return [(block, TOKENS * (index + 1)) for index, block in enumerate(blocks)]


def session(name: str, next_use_s: float | None = None, shared_tokens: int = 0) -> Hints:
    return Hints(name, next_use_s, shared_tokens=shared_tokens)


def test_the_session_that_returns_last_loses_its_blocks_first() -> None:
    tier = Tier()
    tier.request(session("soon", 5), ["s1"])
    tier.request(session("late", 50), ["l1"])
    tier.request(session("later", 90), ["x1"])
    assert tier.victims(3) == ["x1", "l1", "s1"]


def test_the_tail_of_a_chain_goes_before_its_head() -> None:
    tier = Tier()
    tier.request(session("a", 5), ["a1", "a2"])
    tier.request(session("a", 5), ["a1", "a2", "a3"])
    assert tier.victims(3) == ["a3", "a2", "a1"]


def test_a_session_that_ended_goes_before_the_farthest_one() -> None:
    tier = Tier()
    tier.request(session("far", 1000), ["f1"])
    tier.request(session("gone", 1), ["g1", "g2"])
    tier.request(Hints("gone", drop=True), ["g1", "g2", "g3"])
    assert tier.victims(4) == ["g3", "g2", "g1", "f1"]


def test_a_one_shot_goes_first_and_leaves_the_prefix_that_others_use() -> None:
    tier = Tier()
    for name in "ab":
        tier.request(session(name, 1000), ["p1", f"{name}1"])
    tier.request(Hints("once", once=True), ["p1", "o1", "o2"])
    assert tier.victims(2) == ["o2", "o1"]
    assert tier.victims(3)[-1] == "p1"


def test_blocks_of_a_last_request_are_worthless_from_the_moment_it_runs() -> None:
    tier = Tier()
    tier.request(session("far", 1000), ["f1"])
    tier.begin(Hints("gone", drop=True), ["g1"], 0.0)
    assert tier.victims(1) == ["g1"]


def test_a_waiting_request_keeps_what_it_is_about_to_load_even_if_it_is_the_last_one() -> None:
    tier = Tier()
    tier.request(session("far", 1000), ["f1"])
    tier.request(session("gone", 2000), ["g1"])
    tier.policy.arrive("last", Hints("gone", drop=True), 1.0)
    assert tier.victims(1, now=1.0) == ["f1"]


def test_sessions_of_unknown_next_use_leave_in_the_order_of_their_last_use() -> None:
    tier = Tier()
    for now, name in enumerate("abca"):
        tier.request(session(name), [f"{name}1"], float(now))
    assert tier.victims(3, now=9.0) == ["b1", "c1", "a1"]


def test_requests_without_hints_leave_in_the_order_of_their_last_use() -> None:
    tier = Tier()
    for now, name in enumerate("abca"):
        tier.request(Hints(), [f"{name}1"], float(now))
    assert tier.victims(3, now=9.0) == ["b1", "c1", "a1"]


def test_a_running_request_without_hints_is_the_most_recent_use() -> None:
    tier = Tier()
    for now in range(10):
        tier.policy.finish(tier.begin(Hints(), [f"old{now}"], 10.0 * now), Hints(), 10.0 * now + 9.0)
    tier.begin(Hints(), ["running"], 100.0)
    assert tier.victims(11, now=101.0)[-1] == "running"


def test_an_unknown_next_use_counts_as_far_ahead_as_the_last_use_is_back() -> None:
    tier = Tier()
    tier.request(session("unknown"), ["u1"], 0.0)
    tier.request(session("soon", 25), ["s1"], 0.0)
    tier.request(session("late", 50), ["l1"], 0.0)
    assert tier.victims(3, now=20.0) == ["l1", "u1", "s1"]


def test_a_session_that_never_returns_is_evicted_in_the_end() -> None:
    tier = Tier()
    tier.request(session("vanished", 5), ["v1"], 0.0)
    tier.request(session("alive", 60), ["a1"], 1_000.0)
    assert tier.victims(1, now=1_001.0) == ["v1"]


def test_a_shared_prefix_is_evicted_after_everything_else() -> None:
    tier = Tier()
    for name in "ab":
        tier.request(session(name, 500), ["p1", "p2", f"{name}1"])
    tier.request(session("c", 1), ["c1"])
    assert tier.victims(5)[-2:] == ["p2", "p1"]


def test_a_prefix_that_is_announced_as_shared_outlives_its_only_session() -> None:
    tier = Tier()
    tier.request(session("a", 5, shared_tokens=TOKENS), ["p1", "a1"], 0.0)
    tier.request(Hints("a", drop=True, shared_tokens=TOKENS), ["p1", "a1"], 1.0)
    tier.request(session("b", 500), ["b1"], 1.0)
    assert tier.victims(3, now=2.0) == ["a1", "b1", "p1"]


def test_a_context_that_the_device_will_still_have_is_given_up_before_one_that_waits_longer() -> None:
    tier = Tier()
    for number in range(20):
        pause, was_resident = (4.0, True) if number % 2 else (40.0, False)
        tier.policy.residency.observe(pause, was_resident)
    tier.request(session("returns at once", 1), ["r1"])
    tier.request(session("waits", 30), ["w1"])
    assert tier.victims(2) == ["r1", "w1"]


def test_a_context_that_did_not_return_while_the_device_had_it_is_kept_again() -> None:
    tier = Tier()
    tier.policy.residency.observe(4.0, True)
    tier.request(session("late", 1), ["l1"])
    tier.request(session("far", 60), ["f1"])
    assert tier.victims(2, now=10.0) == ["f1", "l1"]


def test_the_policy_learns_how_long_the_device_keeps_a_context() -> None:
    tier = Tier()
    now = 0.0
    for turn in range(40):
        pause = 2.0 if turn % 2 else 20.0
        tier.request(session("a", 1), ["a1"], now)
        now += pause
        if pause > 10:
            tier.policy.miss_on_device(f"r{tier.requests + 1}", session("a", 1), "a1", now)
    assert 0.5 < tier.policy.residency.seconds < 10


def test_blocks_that_are_stored_after_the_end_of_a_last_request_are_worthless() -> None:
    tier = Tier()
    hints = Hints("gone", drop=True)
    tier.request(session("far", 1000), ["f1"])
    request = tier.begin(hints, ["g1"], 0.0)
    tier.policy.finish(request, hints, 0.0)
    tier.policy.add("g2")
    tier.policy.touch(request, hints, positions(["g1", "g2"]), 0.1)
    tier.policy.unpin("g2")
    assert set(tier.victims(2, now=0.2)) == {"g1", "g2"}


def test_too_few_evictable_blocks_change_nothing() -> None:
    tier = Tier()
    tier.request(session("a", 5), ["a1", "a2", "a3"])
    tier.policy.pin("a3")
    assert tier.policy.evict(2, {"a1"}, 0.0) is None
    assert len(tier.policy) == 3
    assert tier.policy.evict(1, {"a1"}, 0.0) == ["a2"]
    tier.policy.unpin("a3")
    assert tier.victims(2) == ["a3", "a1"]


def test_sessions_of_clients_that_vanished_are_forgotten() -> None:
    tier = Tier()
    for number in range(MAX_SESSIONS + 10):
        tier.request(session(str(number), 5), [str(number)], float(number))
    assert len(tier.policy._sessions) == MAX_SESSIONS


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_a_pinned_or_protected_block_never_leaves_and_every_other_can(seed: int) -> None:
    random = Random(seed)
    policy: NextUsePolicy[str] = NextUsePolicy()
    pins: dict[str, bool] = {}
    for step in range(120):
        now = step / 2
        name = random.choice("abcd")
        hints = Hints(
            random.choice([name, None]),
            random.choice([None, 1.0, 30.0]),
            drop=random.random() < 0.1,
            once=random.random() < 0.1,
            shared_tokens=random.choice([0, TOKENS]),
        )
        request = f"{name}{random.randrange(30)}"
        blocks = ["p1", *(f"{name}{depth}" for depth in range(random.randrange(6)))]
        match random.randrange(6):
            case 0:
                policy.arrive(request, hints, now)
                policy.miss_on_device(request, hints, blocks[-1], now)
            case 1 | 2:
                policy.run(request, hints, now)
                for block in blocks:
                    if block not in pins:
                        policy.add(block)
                        pins[block] = True
                policy.touch(request, hints, positions(blocks), now)
            case 3:
                policy.finish(request, hints, now)
            case 4:
                for block in random.sample(sorted(pins), len(pins) // 2):
                    (policy.unpin if pins[block] else policy.pin)(block)
                    pins[block] = not pins[block]
            case _:
                protected = set(random.sample(sorted(pins), len(pins) // 4))
                free = {block for block, is_pinned in pins.items() if not is_pinned and block not in protected}
                count = random.randint(0, len(free) + 1)
                victims = policy.evict(count, protected, now)
                assert (victims is None) == (count > len(free))
                assert set(victims or ()) <= free
                assert len(victims or ()) in (0, count)
                for block in victims or ():
                    del pins[block]
        assert len(policy) == len(pins)
    assert sorted(policy.evict(sum(not each for each in pins.values()), (), 99.0) or []) == sorted(
        block for block, is_pinned in pins.items() if not is_pinned
    )


@pytest.mark.parametrize("next_use_s", [3.0, None])
def test_what_is_left_of_a_session_is_always_its_head(next_use_s: float | None) -> None:
    random = Random(1)
    tier = Tier()
    chains = {name: [f"{name}{depth}" for depth in range(40)] for name in "abcdef"}
    for step in range(300):
        name = random.choice("abcdef")
        tier.request(session(name, next_use_s), chains[name][: random.randint(1, 40)], float(step))
        if len(tier.policy) > 100:
            tier.victims(len(tier.policy) - 100, float(step))
        for blocks in chains.values():
            held = [block in tier.policy for block in blocks]
            assert held == sorted(held, reverse=True)


def test_an_exclusive_tier_evicts_the_copies_of_sessions_that_run_first() -> None:
    tier = Tier(is_exclusive=True)
    tier.request(session("late", 90), ["l1", "l2"])
    tier.request(session("soon", 5), ["s1", "s2"])
    tier.begin(session("soon", 5), ["s1", "s2"], now=5.0)
    assert tier.victims(3, now=6.0) == ["s2", "s1", "l2"]


def test_an_exclusive_tier_keeps_contexts_of_waiting_sessions_if_the_device_has_the_new_one() -> None:
    tier = Tier(is_exclusive=True)
    tier.request(session("waits", 90), ["w1", "w2"])
    running = tier.begin(session("runs", 5), ["r1", "r2"], now=1.0)
    assert tier.policy.evict(3, (), 2.0, spared_until=math.inf) is None
    assert len(tier.policy) == 4
    assert tier.policy.evict(1, (), 2.0, spared_until=math.inf) == ["r2"]
    tier.policy.finish(running, session("runs", 5), 3.0)
    assert tier.policy.evict(1, (), 4.0, spared_until=math.inf) is None
    assert tier.victims(3, now=4.0) == ["w2", "w1", "r1"]


def test_an_exclusive_tier_gives_room_to_a_context_that_is_needed_earlier() -> None:
    tier = Tier(is_exclusive=True)
    tier.request(session("late", 90), ["l1"])
    tier.request(session("soon", 5), ["s1"])
    assert tier.policy.evict(2, (), 1.0, spared_until=20.0) is None
    assert tier.policy.evict(1, (), 1.0, spared_until=20.0) == ["l1"]


def test_what_an_exclusive_tier_has_of_a_context_that_stays_on_the_device_goes_first() -> None:
    tier = Tier(is_exclusive=True)
    tier.request(session("stays", 5), ["s1"])
    tier.request(session("waits", 90), ["w1"])
    tier.policy.keep_on_device("stays", 1.0)
    assert tier.policy.evict(1, (), 2.0, spared_until=math.inf) == ["s1"]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 6)), max_size=60))
def test_an_exclusive_tier_that_spares_waiting_sessions_evicts_none_of_their_blocks(
    steps: list[tuple[int, bool, int]],
) -> None:
    tier = Tier(is_exclusive=True)
    running: dict[str, str] = {}
    for now, (agent, begins, count) in enumerate(steps):
        name = f"a{agent}"
        blocks = [f"{name}-{index}" for index in range(3)]
        if begins and name not in running:
            running[name] = tier.begin(session(name, 10), blocks, float(now))
        elif name in running:
            tier.policy.finish(running.pop(name), session(name, 10), float(now))
        held = len(tier.policy)
        victims = tier.policy.evict(count, (), float(now), spared_until=math.inf)
        assert all(victim.split("-")[0] in running for victim in victims or ())
        assert len(tier.policy) == held - len(victims or ())
