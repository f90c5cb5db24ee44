"""When the contexts of waiting agents are touched."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.schedule.keep_warm_policy import KeepWarmPolicy

KV = 100_000
LOOK = 0.5
RATE = 10_000


class Server:
    """Computes at an even rate and is looked at every half a second."""

    def __init__(self, rate: float = RATE, kv_usage: float | None = 0.0, speed: float | None = 100_000) -> None:
        self.plan = KeepWarmPolicy(KV)
        self.rate = rate
        self.kv_usage = kv_usage
        self.speed = speed
        self.now = 0.0
        self.computed = 0.0

    def look(self, seconds: float = LOOK, waiting: int = 0, *, has_room: bool = True) -> list[str]:
        self.now += seconds
        self.computed += self.rate * seconds
        load = ServerLoad(waiting=waiting, kv_usage=self.kv_usage, computed=int(self.computed))
        return self.plan.on_load(load, self.now, self.speed, has_room=has_room)

    def first_touch(self, within: float, look: float = LOOK) -> tuple[float, list[str]] | None:
        """When, from now on, and of whom."""
        began = self.now
        while self.now < began + within:
            if due := self.look(look):
                return self.now - began, due
        return None


@pytest.fixture
def server() -> Server:
    server = Server()
    server.look()
    server.look()
    return server


def test_a_keep_warm_request_is_due_shortly_before_the_context_is_evicted(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(20) == (8.5, ["a"])  # its end goes after 9.6 s: three looks before that


def test_a_keep_warm_request_keeps_a_context_for_the_same_time_again(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    server.first_touch(20)
    assert server.plan.on_reply("a", 10)
    assert server.first_touch(20) == (8.5, ["a"])


def test_the_tokens_of_running_requests_are_not_free_capacity() -> None:
    server = Server(kv_usage=0.5)
    server.look()
    server.look()
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(20) == (3.5, ["a"])


def test_room_that_came_after_its_last_use_does_not_help_a_context() -> None:
    server = Server(kv_usage=0.5)
    server.look()
    server.look()
    server.plan.on_wait("a", 4000, None)
    server.kv_usage = 0.0  # the requests that ended are younger
    assert server.first_touch(20) == (3.5, ["a"])


def test_a_server_that_does_not_tell_its_usage_is_taken_to_have_room() -> None:
    server = Server(kv_usage=None)
    server.look()
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(20) is not None


def test_others_that_are_used_again_push_a_context_out_too(server: Server) -> None:
    others = [f"other {number}" for number in range(5)]
    for other in others:
        server.plan.on_wait(other, 10_000, None)
    server.plan.on_wait("a", 4000, None)
    for other in others:
        server.plan.on_return(other)
    assert server.first_touch(20) == (3.5, ["a"])


def test_others_push_a_context_out_once_however_often_they_are_used(server: Server) -> None:
    others = [f"other {number}" for number in range(5)]
    for other in others:
        server.plan.on_wait(other, 10_000, None)
    server.plan.on_wait("a", 4000, None)
    for other in 3 * others:
        server.plan.on_return(other)
        server.plan.on_wait(other, 10_000, server.now + 60)
    assert server.first_touch(20) == (3.5, ["a", *others])


def test_an_ended_agent_is_forgotten_when_no_older_agent_waits(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    for number in range(100):
        server.plan.on_wait(f"{number}", 4000, None)
        server.plan.on_return(f"{number}")
    server.plan.on_return("a")
    server.look()
    assert server.plan == replace(server.plan, _contexts={})


def test_contexts_that_were_computed_only_now_count_once(server: Server) -> None:
    for agent in "abcd":
        server.plan.on_wait(agent, 5000, None)
    assert server.first_touch(20) == (8.0, list("abcd"))


def test_an_agent_that_returns_in_time_gets_no_keep_warm_request(server: Server) -> None:
    server.plan.on_wait("a", 4000, server.now + 8.9)
    assert server.first_touch(8.5) is None


def test_an_agent_later_than_expected_gets_a_keep_warm_request_in_time(server: Server) -> None:
    server.plan.on_wait("a", 4000, server.now + 8.9)
    assert server.first_touch(20) == (9.0, ["a"])


def test_an_agent_expected_too_late_gets_a_keep_warm_request(server: Server) -> None:
    server.plan.on_wait("a", 4000, server.now + 60)
    assert server.first_touch(20) == (8.5, ["a"])


def test_an_agent_that_has_returned_gets_no_keep_warm_request(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    server.plan.on_return("a")
    server.plan.on_return("a")
    assert server.first_touch(20) is None
    assert not server.plan.on_reply("a", 0)


def test_a_context_that_is_cheap_to_recompute_gets_no_keep_warm_request(server: Server) -> None:
    server.plan.on_wait("a", 200, None)
    server.plan.on_wait("b", 0, None)
    assert server.first_touch(20) is None


def test_no_wait_is_spent_more_on_than_its_context_is_worth(server: Server) -> None:
    server.plan.on_wait("a", 1000, None)
    touches = 0
    while server.first_touch(20):
        server.plan.on_reply("a", 16)
        touches += 1
    assert touches == 3
    server.plan.on_wait("a", 1000, None)
    assert server.first_touch(20) is not None


def test_an_evicted_context_gets_no_keep_warm_request(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    for _ in range(20):
        server.look(waiting=1)
    assert server.first_touch(20) is None


def test_a_partly_evicted_context_is_kept_warm_while_that_saves_time(server: Server) -> None:
    server.plan.on_wait("a", 40_000, None)
    for _ in range(14):
        server.look(waiting=1)
    assert server.look() == ["a"]
    for _ in range(2):
        server.look(waiting=1)
    assert server.look() == []


def test_a_context_that_was_gone_makes_the_next_touch_come_earlier(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    server.first_touch(20)
    assert not server.plan.on_reply("a", 3900)
    server.plan.on_return("a")
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(20) == (7.5, ["a"])


def test_an_idle_server_gets_no_keep_warm_requests() -> None:
    server = Server(rate=0)
    server.look()
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(60) is None


@pytest.mark.parametrize("kv_usage", [0.85, 1.0])
def test_a_full_server_gets_no_keep_warm_requests(kv_usage: float) -> None:
    server = Server()
    server.look()
    server.plan.on_wait("a", 4000, None)
    server.kv_usage = kv_usage
    assert server.first_touch(60) is None


def test_nothing_is_touched_on_a_server_that_computes_nearly_all_it_can() -> None:
    server = Server(speed=13_000)
    server.look()
    server.plan.on_wait("a", 4000, None)
    assert server.first_touch(60) is None


def test_no_keep_warm_requests_while_agents_of_the_run_wait_for_slots(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    assert not any(server.look(has_room=False) for _ in range(40))


def test_a_server_that_started_anew_has_nothing_to_keep(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    server.look()
    server.computed = 0
    assert server.first_touch(20) is None
    server.plan.on_wait("b", 4000, None)
    assert server.first_touch(20) == (8.5, ["b"])


def test_after_a_long_silence_nothing_is_touched_as_if_there_were_another(server: Server) -> None:
    server.plan.on_wait("a", 4000, None)
    assert server.look(5) == []
    assert server.first_touch(20) == (3.5, ["a"])


def test_only_so_many_are_touched_at_once_and_those_that_go_first(server: Server) -> None:
    for number in range(40):
        server.plan.on_wait(f"{number}", 1000, None)
    found = server.first_touch(20)
    assert found is not None
    assert found[1] == [f"{number}" for number in range(16)]
    for agent in found[1]:
        server.plan.on_reply(agent, 0)
    assert server.look() == [f"{number}" for number in range(16, 32)]


LOADS = st.builds(
    ServerLoad,
    waiting=st.integers(0, 3),
    kv_usage=st.none() | st.floats(0, 1),
    computed=st.integers(0, 10**6),
)
STEPS = st.lists(st.tuples(st.floats(0, 40), LOADS, st.booleans()), max_size=30)


@given(steps=STEPS, tokens=st.lists(st.integers(0, 60_000), max_size=8), speed=st.none() | st.floats(1, 1e6))
def test_a_busy_server_never_gets_keep_warm_requests(
    steps: list[tuple[float, ServerLoad, bool]], tokens: list[int], speed: float | None
) -> None:
    plan, now = KeepWarmPolicy(KV), 0.0
    for number, size in enumerate(tokens):
        plan.on_wait(str(number), size, None)
    for seconds, load, has_room in steps:
        now += seconds
        due = plan.on_load(load, now, speed, has_room=has_room)
        assert len(set(due)) == len(due) <= len(tokens)
        if load.waiting or (load.kv_usage or 0) > 0.8 or not has_room:
            assert due == []
        for agent in due[::2]:
            plan.on_reply(agent, load.computed % 500)


@given(
    rate=st.floats(100, 30_000),
    tokens=st.integers(256, 40_000),
    look=st.floats(0.05, 1.0),
    kv_usage=st.floats(0, 0.5),
)
def test_a_context_is_touched_before_it_goes_when_looks_are_regular(
    rate: float, tokens: int, look: float, kv_usage: float
) -> None:
    server = Server(rate, kv_usage, speed=None)
    server.look(look)
    server.look(look)
    server.plan.on_wait("a", tokens, None)
    stays = ((1 - kv_usage) * KV - tokens) / rate
    touched = server.first_touch(min(stays, 500 * look) + look, look)
    if stays > 505 * look:  # it is touched up to four looks before
        assert touched is None
    elif stays <= 500 * look:
        assert touched is not None
    if touched is not None and stays > 4 * look:
        assert stays - 3.1 * look <= touched[0] < stays


class Cache:
    """A cache of tokens that throws out what was not used for longest, as the engines do."""

    def __init__(self) -> None:
        self.used: list[tuple[str, float]] = []

    def use(self, what: str, tokens: float) -> float:
        """How much of it was still there."""
        found = self._there(what)
        self.used = [(name, size) for name, size in self.used if name != what]
        self.used.append((what, tokens))
        return min(found, tokens)

    def _there(self, what: str) -> float:
        younger = 0.0
        for name, size in reversed(self.used):
            if name == what:
                return max(0.0, min(size, KV - younger))
            younger += size
        return 0.0


@given(
    sizes=st.lists(st.integers(600, 9000), min_size=1, max_size=8),
    rate=st.floats(500, 8_000),
    pauses=st.lists(st.floats(LOOK, 2), min_size=8, max_size=8),
)
def test_in_a_cache_of_the_kind_that_is_supposed_every_touch_finds_its_context(
    sizes: list[int], rate: float, pauses: list[float]
) -> None:
    plan, cache = KeepWarmPolicy(KV), Cache()
    waiting = dict(enumerate(sizes))
    began = {agent: sum(pauses[: agent + 1]) for agent in waiting}
    now = computed = 0.0
    for step in range(120):
        now += LOOK
        computed += rate * LOOK
        cache.use(f"churn {step}", rate * LOOK)
        for agent in [agent for agent in waiting if now - LOOK <= began[agent] < now]:
            computed += waiting[agent] - cache.use(str(agent), waiting[agent])
            plan.on_wait(str(agent), waiting[agent], None)
        for agent in _numbers(plan.on_load(ServerLoad(computed=int(computed)), now, None, has_room=True)):
            found = cache.use(str(agent), waiting[agent])
            computed += waiting[agent] - found
            assert found == waiting[agent]
            assert plan.on_reply(str(agent), 0)


def _numbers(agents: Iterable[str]) -> list[int]:
    return [int(agent) for agent in agents]
