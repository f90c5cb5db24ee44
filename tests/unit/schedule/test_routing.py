"""Which endpoint gets the next piece of work, and which gets none for a while."""

import random
from dataclasses import dataclass, field

import pytest

from batch_agent.schedule.endpoints.affinity import Affinity
from batch_agent.schedule.endpoints.routing import Routing
from batch_agent.schedule.endpoints.throughput import MeanThroughput, Throughput

FIRST_TWO = (0.0, 0.0)
"""Draws the first endpoint and the second; of equal ones the first is chosen."""
LARGEST = 1 - 2**-53
"""The largest number that random() returns."""


@dataclass
class Road:
    """A routing, and short ways to let requests be answered and fail, one after the other."""

    count: int = 2
    routing: Routing = field(init=False)

    def __post_init__(self) -> None:
        self.routing = Routing([f"http://{each}" for each in range(self.count)])

    def answers(self, endpoint: int, at: float = 0.0, weight: float = 1.0, seconds: float = 1.0) -> None:
        self.routing.done(self.routing.sent(endpoint, weight, at - seconds), at)

    def lasts(self, endpoint: int, since: float) -> float:
        """How long it is away, to the tenth of a second, if nothing else happens."""
        away = (tenths / 10 for tenths in range(1_000) if endpoint in self.routing.available(since + tenths / 10))
        return next(away, float("inf"))

    def fails(self, endpoint: int, *times: float, is_refused: bool = False) -> None:
        for at in times:
            ticket = self.routing.sent(endpoint, 1.0, at)
            self.routing.failed(ticket, at, is_endpoint_fault=True, is_refused=is_refused)


def test_endpoints_have_names_and_places() -> None:
    routing = Routing(["http://a", "http://b"])
    assert len(routing) == 2
    assert routing.name(1) == "http://b"


def test_without_endpoints_none_is_chosen() -> None:
    routing = Routing([])
    assert routing.choose(1.0, 0.0, draw=FIRST_TWO) is None
    assert routing.available(0.0) == []


def test_a_lone_endpoint_is_chosen_whatever_is_drawn() -> None:
    assert Routing(["a"]).choose(1.0, 0.0, draw=(0.999, 0.999)) == 0


@pytest.mark.parametrize(
    ("draw", "chosen"), [((0.0, 0.0), 0), ((0.4, 0.0), 1), ((0.99, 0.0), 2), ((LARGEST, LARGEST), 2)]
)
def test_of_equal_ones_the_first_that_was_drawn_is_chosen(draw: tuple[float, float], chosen: int) -> None:
    assert Routing(["a", "b", "c"]).choose(1.0, 0.0, draw=draw) == chosen


def test_two_different_ones_are_drawn_and_the_one_with_less_to_do_is_chosen() -> None:
    routing = Routing(["a", "b", "c"])
    routing.sent(0, 5.0, 0.0)
    assert routing.choose(1.0, 0.0, draw=(0.0, 0.0)) == 1
    assert routing.choose(1.0, 0.0, draw=(0.0, 0.9)) == 2


def test_load_is_time_and_not_work() -> None:
    road = Road()
    road.answers(0, 1.0, weight=10.0)
    road.answers(1, 1.0, weight=1.0)
    road.routing.sent(0, 4.0, 1.0)
    road.routing.sent(1, 1.0, 1.0)
    assert road.routing.choose(1.0, 1.0, draw=FIRST_TWO) == 0


def test_an_endpoint_of_unknown_speed_is_taken_to_be_like_the_others() -> None:
    road = Road(3)
    road.answers(0, 1.0, weight=1.0)
    road.answers(1, 1.0, weight=3.0)
    assert road.routing.speed(2) is None
    assert road.routing.expected_wait(2, 4.0, 1.0) == pytest.approx(2.0)


def test_an_endpoint_that_keeps_silent_is_taken_to_be_slower_the_longer_it_does() -> None:
    road = Road()
    road.answers(0, 1.0, weight=2.0)
    for endpoint in (0, 1):
        road.routing.sent(endpoint, 4.0, 1.0)
        assert road.routing.expected_wait(endpoint, 4.0, 3.0) == pytest.approx(4.0)
        assert road.routing.expected_wait(endpoint, 4.0, 11.0) == pytest.approx(20.0)


def test_an_agent_goes_back_to_where_it_was() -> None:
    routing = Routing(["a", "b", "c"])
    assert routing.choose(1.0, 0.0, origin="agent", draw=(0.5, 0.0)) == 1
    routing.sent(1, 1.0, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 1
    assert routing.choose(1.0, 0.0, origin="other", draw=(0.5, 0.0)) == 0


@pytest.mark.parametrize("trouble", ["ejected", "draining", "excluded"])
def test_an_agent_whose_home_may_not_have_work_finds_another_and_stays_there(trouble: str) -> None:
    road = Road()
    assert road.routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0
    if trouble == "ejected":
        road.fails(0, 0.0, is_refused=True)
    if trouble == "draining":
        road.routing.drain(0)
    exclude = [0] if trouble == "excluded" else []
    assert road.routing.choose(1.0, 0.0, origin="agent", exclude=exclude, draw=FIRST_TWO) == 1
    road.routing.undrain(0)
    assert road.routing.choose(1.0, 9.0, origin="agent", draw=FIRST_TWO) == 1


def test_an_agent_leaves_a_home_where_it_would_wait_much_longer() -> None:
    routing = Routing(["a", "b"])
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0
    routing.sent(0, 3.0, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0
    routing.sent(0, 0.1, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 1


def test_an_agent_that_leaves_home_does_not_come_back_at_once_because_another_is_worse_still() -> None:
    routing = Routing(["a", "b", "c"])
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0
    routing.sent(0, 10.0, 0.0)
    routing.sent(2, 20.0, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", draw=(0.0, 0.9)) == 1


def test_an_agent_with_nowhere_else_to_go_stays_however_long_it_waits() -> None:
    routing = Routing(["a", "b"])
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0
    routing.sent(0, 1000.0, 0.0)
    routing.drain(1)
    assert routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO) == 0


def test_an_agent_that_left_has_no_home() -> None:
    routing = Routing(["a", "b"])
    routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO)
    routing.forget_origin("agent")
    routing.forget_origin("nobody")
    assert routing.choose(1.0, 0.0, origin="agent", draw=(0.9, 0.0)) == 1


def test_prompts_that_begin_alike_go_to_one_endpoint_while_it_has_no_more_than_others() -> None:
    routing = Routing(["a", "b"])
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=(0.9, 0.0)) == 1
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=FIRST_TWO) == 1
    routing.sent(1, 9.0, 0.0)
    routing.sent(0, 6.0, 0.0)
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=FIRST_TWO) == 1
    routing.sent(1, 3.0, 0.0)
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=FIRST_TWO) == 0


def test_when_one_that_served_a_prefix_is_full_another_that_did_has_it() -> None:
    routing = Routing(["a", "b", "c", "d"])
    routing.choose(1.0, 0.0, prefixes=["text"], exclude=[0, 1, 2], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, prefixes=["text"], exclude=[1, 2, 3], draw=FIRST_TWO)
    routing.sent(0, 9.0, 0.0)
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=(0.3, 0.3)) == 3


def test_of_those_that_served_a_prefix_the_one_with_less_to_do_has_it() -> None:
    routing = Routing(["a", "b", "c"])
    for others in ([1, 2], [0, 2]):
        routing.choose(1.0, 0.0, prefixes=["text"], exclude=others, draw=FIRST_TWO)
    routing.sent(2, 8.0, 0.0)
    routing.sent(0, 1.0, 0.0)
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=FIRST_TWO) == 1
    routing.sent(1, 2.0, 0.0)
    assert routing.choose(1.0, 0.0, prefixes=["text"], draw=FIRST_TWO) == 0


def test_an_agent_comes_before_its_prefix() -> None:
    routing = Routing(["a", "b"])
    routing.choose(1.0, 0.0, origin="agent", prefixes=["text"], exclude=[1], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, prefixes=["text"], exclude=[0], draw=FIRST_TWO)
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["text"], draw=(0.9, 0.0)) == 0


def test_an_agent_whose_text_moved_behind_a_reference_goes_where_that_reference_is() -> None:
    routing = Routing(["a", "b", "c"])
    routing.choose(1.0, 0.0, origin="agent", prefixes=["lead"], exclude=[1, 2], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, origin="other", prefixes=["lead doc", "lead"], exclude=[0, 2], draw=FIRST_TWO)
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["lead doc", "lead"], draw=FIRST_TWO) == 1
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["lead doc", "lead"], draw=FIRST_TWO) == 1


def test_of_several_beginnings_the_longest_that_an_endpoint_has_decides() -> None:
    routing = Routing(["a", "b", "c"])
    routing.choose(1.0, 0.0, prefixes=["lead"], exclude=[1, 2], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, prefixes=["lead x", "lead"], exclude=[0, 1], draw=FIRST_TWO)
    assert routing.choose(1.0, 0.0, prefixes=["lead x y", "lead x", "lead"], draw=FIRST_TWO) == 2


def test_an_agent_whose_text_moved_stays_where_as_much_of_its_beginning_is_as_elsewhere() -> None:
    routing = Routing(["a", "b"])
    routing.choose(1.0, 0.0, prefixes=["lead doc", "lead"], exclude=[1], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, origin="agent", prefixes=["lead"], exclude=[0], draw=FIRST_TWO)
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["lead new", "lead"], draw=FIRST_TWO) == 1
    assert routing.choose(1.0, 0.0, origin="third", prefixes=["lead doc", "lead"], exclude=[0], draw=FIRST_TWO) == 1
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["lead doc", "lead"], draw=FIRST_TWO) == 1


def test_an_agent_whose_text_moved_does_not_go_to_an_endpoint_above_the_load_cap() -> None:
    routing = Routing(["a", "b"])
    routing.choose(1.0, 0.0, origin="agent", prefixes=["lead"], exclude=[1], draw=FIRST_TWO)
    routing.choose(1.0, 0.0, prefixes=["lead doc", "lead"], exclude=[0], draw=FIRST_TWO)
    routing.sent(1, 9.0, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["lead doc", "lead"], draw=FIRST_TWO) == 0


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16, 64])
def test_a_prefix_that_all_prompts_share_leaves_no_endpoint_idle(count: int) -> None:
    routing, chance = Routing([str(at) for at in range(count)]), random.Random(1)
    for _ in range(20 * count):
        index = routing.choose(1.0, 0.0, prefixes=["lead"], draw=(chance.random(), chance.random()))
        assert index is not None
        routing.sent(index, 1.0, 0.0)
    requests = [routing.requests(index) for index in range(count)]
    assert min(requests) >= 10
    assert max(requests) <= 30


def test_only_so_many_prefixes_are_remembered_and_the_longest_unused_is_forgotten() -> None:
    affinity = Affinity()
    for prefix in range(4096):
        affinity.record(0, None, [prefix])
    affinity.record(0, None, [0])
    affinity.record(0, None, ["new"])
    both = {0: 1.0, 1: 1.0}
    assert affinity.candidates([0], both, 2) == {0: 1.0}
    assert affinity.candidates([1], both, 2) == both


def test_agents_that_left_are_not_remembered() -> None:
    routing = Routing(["a"])
    routing.choose(1.0, 0.0, origin="agent", draw=FIRST_TWO)
    assert routing.home("agent") == 0
    routing.forget_origin("agent")
    assert routing.home("agent") is None


def test_two_faults_in_a_row_eject_an_endpoint() -> None:
    road = Road()
    road.fails(0, 0.0)
    assert road.routing.available(0.0) == [0, 1]
    road.fails(0, 1.0)
    assert road.routing.available(1.0) == [1]
    assert road.lasts(0, 1.0) == 1.0


def test_an_answer_between_two_faults_makes_them_two_of_different_prompts() -> None:
    road = Road()
    road.fails(0, 0.0)
    road.answers(0, 0.5)
    road.fails(0, 1.0)
    assert road.routing.available(1.0) == [0, 1]


def test_a_failure_that_is_not_the_endpoints_shows_that_it_is_there() -> None:
    road = Road()
    road.fails(0, 0.0)
    road.routing.failed(road.routing.sent(0, 1.0, 0.5), 0.5, is_endpoint_fault=False)
    road.fails(0, 1.0)
    assert road.routing.available(1.0) == [0, 1]


def test_a_request_that_nobody_waits_for_says_nothing() -> None:
    road = Road()
    road.fails(0, 0.0)
    road.routing.abandoned(road.routing.sent(0, 1.0, 0.5), 0.5)
    road.fails(0, 1.0)
    assert road.routing.available(1.0) == [1]


def test_one_refused_connection_ejects() -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    assert road.routing.available(0.0) == [1]


def test_an_endpoint_with_many_requests_that_dies_is_ejected_once() -> None:
    road = Road()
    for ticket in [road.routing.sent(0, 1.0, 0.0) for _ in range(50)]:
        road.routing.failed(ticket, 1.0, is_endpoint_fault=True)
    assert road.lasts(0, 1.0) == 1.0


def test_what_was_sent_before_an_ejection_says_nothing_after_it() -> None:
    road = Road()
    early = [road.routing.sent(0, 1.0, 0.0) for _ in range(4)]
    road.fails(0, 0.0, is_refused=True)
    road.routing.done(early[0], 0.5)
    assert road.routing.available(0.5) == [1]
    road.answers(0, 1.0)
    for ticket in early[1:]:
        road.routing.failed(ticket, 1.5, is_endpoint_fault=True)
    assert road.routing.available(1.5) == [0, 1]


def test_a_late_answer_from_before_an_ejection_does_not_hide_new_faults() -> None:
    road = Road()
    early = road.routing.sent(0, 1.0, 0.0)
    road.fails(0, 0.0, is_refused=True)
    road.answers(0, 1.0)
    road.fails(0, 2.0)
    road.routing.done(early, 3.0)
    road.fails(0, 4.0)
    assert road.routing.available(4.0) == [1]


def test_after_its_time_an_ejected_endpoint_gets_one_request_and_when_it_answers_all() -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    assert road.routing.available(0.99) == [1]
    assert road.routing.available(1.0) == [0, 1]
    probe = road.routing.sent(0, 1.0, 1.0)
    assert road.routing.available(5.0) == [1]
    assert road.lasts(0, 5.0) == float("inf")
    road.routing.done(probe, 5.0)
    assert road.routing.available(5.0) == [0, 1]
    road.routing.sent(0, 1.0, 5.0)
    assert road.routing.available(5.0) == [0, 1]


def test_a_probe_that_nobody_waits_for_is_followed_by_another() -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    road.routing.abandoned(road.routing.sent(0, 1.0, 1.0), 2.0)
    assert road.routing.available(2.0) == [0, 1]


def test_each_ejection_lasts_twice_as_long_as_the_last_up_to_a_minute() -> None:
    road = Road(1)
    lasted: list[float] = []
    now = 0.0
    for _ in range(9):
        road.fails(0, now, is_refused=True)
        lasted.append(road.lasts(0, now))
        now += lasted[-1]
    assert lasted == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(("answers", "lasts"), [(1, 2.0), (15, 2.0), (16, 1.0)])
def test_an_endpoint_that_comes_and_goes_is_forgiven_after_some_answers(answers: int, lasts: float) -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    for _ in range(answers):
        road.answers(0, 5.0)
    road.fails(0, 5.0, is_refused=True)
    assert road.lasts(0, 5.0) == lasts


def test_answers_from_before_an_ejection_do_not_count_for_forgiveness() -> None:
    road = Road()
    for _ in range(15):
        road.answers(0, 0.0)
    road.fails(0, 0.0, is_refused=True)
    road.answers(0, 5.0)
    road.answers(0, 5.0)
    road.fails(0, 5.0, is_refused=True)
    assert road.lasts(0, 5.0) == 2.0


def test_when_all_endpoints_are_ejected_none_is_chosen_until_one_returns() -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    road.fails(1, 0.5, is_refused=True)
    assert road.routing.available(0.5) == []
    assert road.routing.choose(1.0, 0.5, draw=FIRST_TWO) is None
    assert road.lasts(0, 0.5) == 0.5
    assert road.routing.choose(1.0, 1.0, draw=FIRST_TWO) == 0


def test_a_draining_endpoint_ends_what_it_has_and_is_not_waited_for() -> None:
    road = Road()
    road.fails(0, 0.0, is_refused=True)
    ticket = road.routing.sent(1, 1.0, 0.0)
    road.routing.drain(0)
    road.routing.drain(1)
    assert road.routing.available(5.0) == []
    assert road.routing.work(1) == 1.0
    road.routing.done(ticket, 1.0)
    assert road.routing.work(1) == 0.0
    road.routing.undrain(1)
    assert road.routing.available(0.0) == [1]


def test_a_ticket_comes_back_once() -> None:
    routing = Routing(["a"])
    ticket = routing.sent(0, 1.0, 0.0)
    routing.done(ticket, 1.0)
    routing.abandoned(ticket, 1.0)
    with pytest.raises(KeyError):
        routing.done(ticket, 1.0)
    assert routing.requests(0) == 0


def test_speed_is_weight_per_second_of_work_and_idle_time_does_not_count() -> None:
    road = Road(1)
    for at in (1.0, 100.0, 1000.0):
        road.answers(0, at, weight=3.0, seconds=0.5)
    assert road.routing.speed(0) == pytest.approx(6.0)


def test_answers_that_come_in_bursts_do_not_make_an_endpoint_look_fast() -> None:
    load = Throughput()
    for burst in range(10):
        for _ in range(64):
            load.began(1.0, 10.0 * burst)
        for _ in range(64):
            load.answered(1.0, 10.0, 10.0 * (burst + 1))
    assert load.speed == pytest.approx(6.4)


def test_the_first_answers_of_many_that_are_under_way_tell_nothing_of_the_speed() -> None:
    load = Throughput()
    for _ in range(64):
        load.began(1.0, 0.0)
    for _ in range(31):
        load.answered(1.0, 10.0, 10.0)
    assert load.speed is None
    load.answered(1.0, 10.0, 10.0)
    assert load.speed == pytest.approx(3.2)


def test_before_the_speed_is_known_it_is_no_more_than_if_all_were_answered_now() -> None:
    load = Throughput()
    for _ in range(64):
        load.began(1.0, 0.0)
    for _ in range(16):
        load.answered(1.0, 10.0, 10.0)
    fast = MeanThroughput(speed=1000.0, usual_work=64.0)
    assert load.expected_wait(0.0, 20.0, fast) == pytest.approx(48 / (64 / 20))


def test_an_endpoint_that_became_slow_is_believed_within_some_answers() -> None:
    road = Road(1)
    for at in range(1, 20):
        road.answers(0, float(at), weight=8.0)
    for at in range(20, 40):
        road.answers(0, 8.0 * at, weight=8.0, seconds=8.0)
    assert road.routing.speed(0) == pytest.approx(1.0, rel=0.05)


def test_one_slow_answer_moves_the_speed_little() -> None:
    road = Road(1)
    for at in range(1, 20):
        road.answers(0, float(at))
    road.answers(0, 30.0, seconds=2.0)
    assert road.routing.speed(0) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clock_that_stands_still_or_goes_back_makes_nobody_infinitely_fast(seconds: float) -> None:
    road = Road(1)
    for _ in range(100):
        road.answers(0, 5.0, seconds=seconds)
    assert road.routing.speed(0) is None


def test_the_smallest_step_of_a_clock_makes_nobody_infinitely_fast() -> None:
    routing = Routing(["a", "b"])
    routing.done(routing.sent(0, 1.0, 0.0), 5e-324)
    assert routing.speed(0) == pytest.approx(1e6)


def test_work_that_weighs_nothing_tells_nothing() -> None:
    road = Road(1)
    road.answers(0, 1.0, weight=0.0)
    assert road.routing.speed(0) is None
    assert road.routing.expected_wait(0, 1.0, 1.0) == 1.0


def test_time_that_was_spent_on_a_failed_request_alone_does_not_count() -> None:
    road = Road(1)
    road.answers(0, 1.0)
    road.routing.abandoned(road.routing.sent(0, 1.0, 1.0), 61.0)
    road.answers(0, 62.0)
    assert road.routing.speed(0) == pytest.approx(1.0)


def test_a_slow_endpoint_that_had_little_to_do_gets_the_benefit_of_the_doubt_up_to_a_bound() -> None:
    """It had a tenth of what the others had: it may be quicker than it looks, but is not taken for ten times so."""
    road = Road()
    road.answers(0, 1.0, weight=10.0)
    road.answers(1, 1.0, weight=1.0)
    assert road.routing.expected_wait(1, 1.0, 1.0) == pytest.approx(0.5)
    assert road.routing.expected_wait(0, 1.0, 1.0) == pytest.approx(0.1)


def test_an_assigned_agent_stays_whatever_the_load_until_its_endpoint_is_excluded() -> None:
    routing = Routing(["a", "b"])
    routing.assign("agent", 0)
    for _ in range(20):
        routing.sent(0, 1.0, 0.0)
    assert routing.choose(1.0, 0.0, origin="agent", prefixes=["x"], draw=(0.9, 0.9)) == 0
    assert routing.choose(1.0, 0.0, origin="agent", exclude={0}, draw=(0.0, 0.0)) == 1
    assert routing.choose(1.0, 0.0, origin="agent", draw=(0.0, 0.0)) == 1
    routing.forget_origin("agent")
    assert routing.home("agent") is None
