"""The limit doubles while it is searched for, grows slowly after that, and is cut only for a reason."""

import random

import pytest

from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.schedule.concurrency_limit import InflightLimit, LimitDecision

AVAILABLE = "capacity available"
BUSY = ServerLoad(running=8)


def grow(limit: InflightLimit, answers: int, seconds: float = 1.0) -> list[int]:
    """The limits that so many answers lead to."""
    changes = (limit.on_success(seconds, limit_binds=True) for _ in range(answers))
    return [change.limit for change in changes if change is not None]


def after_a_cut(current: int) -> InflightLimit:
    limit = InflightLimit(2 * current, fixed=False)
    assert limit.on_overload(-1000.0, 0) == LimitDecision(current, "rate limited")
    return limit


def looked_at(
    current: int, load: ServerLoad | None = None, *, fixed: bool = False, queue_ceiling: int | None = None
) -> InflightLimit:
    """After the first look, which only shows where the server starts from."""
    limit = InflightLimit(current, fixed=fixed, queue_ceiling=queue_ceiling)
    assert limit.on_load(load or ServerLoad(), 0, -1000.0) is None
    return limit


def test_every_full_round_of_answers_doubles_the_limit_while_it_is_searched_for() -> None:
    limit = InflightLimit(3, fixed=False)
    changes = [limit.on_success(1.0, limit_binds=True) for _ in range(9)]
    assert changes == [
        None,
        None,
        LimitDecision(6, AVAILABLE),
        None,
        None,
        None,
        None,
        None,
        LimitDecision(12, AVAILABLE),
    ]


def test_after_a_cut_the_limit_that_was_too_much_is_approached_in_smaller_steps() -> None:
    limit = after_a_cut(32)
    assert grow(limit, 32 + 40 + 46 + 50) == [40, 46, 50, 53]


def test_a_limit_that_was_too_much_is_forgotten_after_several_rounds_that_go_well_with_it() -> None:
    limit = after_a_cut(3)
    assert grow(limit, 3 + 4 + 5) == [4, 5, 6]
    assert grow(limit, 3 * 6) == []
    assert grow(limit, 6) == [12]


def test_a_limit_that_does_not_bind_does_not_grow() -> None:
    limit = InflightLimit(1, fixed=False)
    assert [limit.on_success(1.0, limit_binds=False) for _ in range(100)] == [None] * 100
    assert limit.current == 1


def test_answers_that_come_together_count_although_the_first_of_them_frees_slots() -> None:
    limit = InflightLimit(8, fixed=False)
    changes = [limit.on_success(1.0, limit_binds=number == 0) for number in range(8)]
    assert changes == [None] * 7 + [LimitDecision(16, "capacity available")]


def test_a_limit_that_binds_no_longer_stops_growing() -> None:
    limit = InflightLimit(8, fixed=False)
    limit.on_success(1.0, limit_binds=True)
    assert [change.limit for change in (limit.on_success(1.0, limit_binds=False) for _ in range(100)) if change] == [16]


@pytest.mark.parametrize(("start", "most"), [(600, 1024), (1020, 1024), (1024, 1024), (2000, 2000)])
def test_there_is_an_end_to_growing(start: int, most: int) -> None:
    limit = InflightLimit(start, fixed=False)
    grow(limit, 10_000)
    assert limit.current == most


def test_a_fixed_limit_does_not_grow() -> None:
    limit = InflightLimit(4, fixed=True)
    assert grow(limit, 1000) == []


def test_a_fixed_limit_is_cut_by_a_refusal_and_grows_back_to_what_it_was() -> None:
    limit = InflightLimit(8, fixed=True)
    assert limit.on_overload(0.0, 0) == LimitDecision(4, "rate limited")
    assert grow(limit, 1000) == [5, 6, 7, 8]


def test_a_higher_limit_that_only_raises_latency_is_undone_and_not_doubled_again() -> None:
    limit = InflightLimit(4, fixed=False)
    assert grow(limit, 4, seconds=1.0) == [8]
    for _ in range(7):
        assert limit.on_success(1.61, limit_binds=True) is None
    assert limit.on_success(1.61, limit_binds=True) == LimitDecision(4, "a higher limit only raised latency")
    assert grow(limit, 4 + 5, seconds=1.0) == [5, 6]


def test_answers_that_take_a_little_longer_are_worth_it() -> None:
    limit = InflightLimit(4, fixed=False)
    grow(limit, 4, seconds=1.0)
    assert grow(limit, 8, seconds=1.59) == [16]


def test_answers_that_take_no_time_at_all_are_no_reason_to_cut() -> None:
    limit = InflightLimit(4, fixed=False)
    assert grow(limit, 4 + 8, seconds=0.0) == [8, 16]


def test_a_server_that_reports_its_load_is_judged_by_it_and_not_by_its_answers() -> None:
    limit = InflightLimit(4, fixed=False)
    assert limit.on_load(BUSY, 0, 0.0) is None
    assert grow(limit, 4, seconds=1.0) == []
    assert grow(limit, 4, seconds=100.0) == []
    assert limit.on_load(BUSY, 4, 1.0) == LimitDecision(8, AVAILABLE)


def test_a_cut_goes_to_what_the_server_had_taken_and_at_most_to_half() -> None:
    assert InflightLimit(128, fixed=False).on_overload(0.0, 100) == LimitDecision(100, "rate limited")
    assert InflightLimit(128, fixed=False).on_overload(0.0, 10) == LimitDecision(64, "rate limited")
    assert InflightLimit(128, fixed=False).on_overload(0.0, 500) == LimitDecision(127, "rate limited")


def test_a_limit_that_worked_before_is_not_cut_below_what_the_server_has_taken() -> None:
    limit = InflightLimit(20, fixed=True)
    limit._highest_good = 20
    assert limit.on_overload(0.0, 19) == (19, "rate limited")
    limit._highest_good = 19
    assert limit.on_overload(10.0, 2) == (14, "rate limited")


def test_a_cut_does_not_go_below_the_last_limit_that_went_well() -> None:
    limit = InflightLimit(32, fixed=False)
    assert grow(limit, 32) == [64]
    assert limit.on_overload(0.0, 0) == LimitDecision(32, "rate limited")
    assert grow(limit, 32) == [40]
    assert limit.on_overload(1.0, 0) == LimitDecision(32, "rate limited")


def test_a_limit_that_is_too_much_again_and_again_is_tried_more_and_more_rarely() -> None:
    limit, rounds = after_a_cut(2), list[int]()
    for _ in range(6):
        tried = 1
        while not grow(limit, limit.current):
            tried += 1
        rounds.append(tried)
        assert limit.on_overload(0.0, 0) == LimitDecision(2, "rate limited")
    assert rounds == [1, 2, 4, 8, 16, 16]


def test_a_limit_that_went_well_and_is_too_much_later_is_lowered_below_it_and_raised_more_slowly() -> None:
    limit = after_a_cut(16)
    assert grow(limit, 16) == [20]
    assert limit.on_overload(0.0, 0) == LimitDecision(16, "rate limited")
    assert limit.on_overload(1.0, 0) == LimitDecision(12, "rate limited")
    assert grow(limit, 3 * 12) == []
    assert grow(limit, 12) == [13]


@pytest.mark.parametrize("now", [-1000.0, 0.0, 1e9])
def test_refusals_cut_whatever_the_clock_shows(now: float) -> None:
    assert InflightLimit(2, fixed=False).on_overload(now, 0) == LimitDecision(1, "rate limited")


def test_a_limit_of_one_is_not_cut() -> None:
    limit = InflightLimit(1, fixed=False)
    assert [limit.on_overload(now, 0) for now in (0.0, 10.0, 20.0)] == [None, None, None]
    assert limit.on_load(ServerLoad(preemptions=0), 0, 30.0) is None
    assert limit.on_load(ServerLoad(preemptions=9), 0, 40.0) is None
    assert limit.current == 1


def test_a_cut_starts_the_round_of_answers_anew() -> None:
    limit = InflightLimit(4, fixed=False)
    grow(limit, 3)
    limit.on_overload(0.0, 0)
    assert grow(limit, 1) == []
    assert grow(limit, 1) == [3]


def rounds_with(limit: InflightLimit, share: float, rounds: int, chance: random.Random) -> list[int]:
    """The limits after rounds in which a share of the requests is refused at random."""
    limits = []
    for _ in range(rounds):
        answers, before = 0, limit.current
        while answers < before and limit.current == before:
            if chance.random() < share:
                limit.on_refusal()
            else:
                answers += 1
                limit.on_success(1.0, limit_binds=True)
        limits.append(limit.current)
    return limits


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_refusals_at_the_same_rate_with_any_limit_do_not_keep_it_from_growing(share: float) -> None:
    for seed in range(50):
        assert rounds_with(InflightLimit(32, fixed=False), share, 5, random.Random(seed))[-1] >= 512


def test_refusals_that_become_more_with_more_in_flight_take_the_last_step_back() -> None:
    limit, chance = InflightLimit(32, fixed=False), random.Random(1)
    assert rounds_with(limit, 0.05, 2, chance) == [64, 128]
    assert rounds_with(limit, 0.4, 1, chance) == [64]


def test_every_poll_that_shows_capacity_doubles_the_limit_during_the_search() -> None:
    limit = looked_at(8)
    changes = [limit.on_load(ServerLoad(running=limit.current), limit.current, float(now)) for now in range(3)]
    assert changes == [LimitDecision(16, AVAILABLE), LimitDecision(32, AVAILABLE), LimitDecision(64, AVAILABLE)]


@pytest.mark.parametrize(
    "load", [ServerLoad(running=8), ServerLoad(running=8, waiting=500), ServerLoad(running=8, preemptions=9)]
)
def test_the_first_look_only_shows_where_the_server_starts_from(load: ServerLoad) -> None:
    limit = InflightLimit(8, fixed=False)
    limit.on_success(1.0, limit_binds=False)
    assert limit.on_load(load, 8, 0.0) is None


def test_a_look_at_a_limit_that_does_not_bind_does_not_grow_it() -> None:
    limit = looked_at(8)
    assert [limit.on_load(ServerLoad(running=7), 7, float(now)) for now in range(100)] == [None] * 100


def test_polls_raise_the_limit_no_higher_than_the_ceiling() -> None:
    limit = looked_at(1000)
    assert limit.on_load(ServerLoad(running=1000), 1000, 0.0) == LimitDecision(1024, AVAILABLE)
    assert limit.on_load(ServerLoad(running=1024), 1024, 1.0) is None


def test_a_fixed_limit_does_not_grow_by_looks_beyond_what_it_was() -> None:
    limit = looked_at(8, fixed=True)
    assert limit.on_load(ServerLoad(running=8), 8, 0.0) is None
    limit.on_overload(1.0, 0)
    changes = [limit.on_load(ServerLoad(running=limit.current), limit.current, 10.0 + now) for now in range(6)]
    assert [change.limit for change in changes if change] == [6, 8]


def test_preemptions_at_the_server_cut_the_limit_by_a_quarter() -> None:
    limit = InflightLimit(16, fixed=False)
    assert limit.on_load(ServerLoad(running=15, preemptions=7), 15, 0.0) is None  # of before our time
    assert limit.on_load(ServerLoad(running=15, preemptions=10), 15, 5.0) == LimitDecision(12, "the server preempted 3")
    assert limit.on_load(ServerLoad(running=11, preemptions=10), 11, 10.0) is None


def test_a_restarted_server_has_preempted_nothing() -> None:
    limit = InflightLimit(16, fixed=False)
    limit.on_load(ServerLoad(preemptions=100), 0, 0.0)
    assert limit.on_load(ServerLoad(preemptions=3), 0, 5.0) is None
    assert limit.on_load(ServerLoad(preemptions=4), 0, 10.0) == LimitDecision(12, "the server preempted 1")


def test_preemptions_end_the_search_and_the_limit_then_grows_by_a_quarter_with_each_poll() -> None:
    limit = InflightLimit(16, fixed=False)
    limit.on_load(ServerLoad(preemptions=0), 0, 0.0)
    limit.on_load(ServerLoad(preemptions=1), 0, 5.0)
    assert limit.on_load(ServerLoad(running=12, preemptions=1), 12, 10.0) == LimitDecision(16, AVAILABLE)
    assert limit.on_load(ServerLoad(running=16, preemptions=1), 16, 11.0) == LimitDecision(21, AVAILABLE)


def test_a_queue_at_the_server_is_cut_to_what_it_will_take_up_soon() -> None:
    limit = looked_at(64, ServerLoad(running=40))
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=40, waiting=24), 64, 1.0) == LimitDecision(44, "24 queued at the server")


def test_a_burst_that_the_server_has_not_answered_yet_is_no_queue() -> None:
    limit = looked_at(64)
    assert [limit.on_load(ServerLoad(running=4, waiting=60), 64, float(now)) for now in range(5)] == [None] * 5
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=4, waiting=59), 63, 6.0) == LimitDecision(31, "59 queued at the server")


def test_a_queue_that_is_still_there_is_not_cut_again() -> None:
    limit, crowded = looked_at(64, ServerLoad(running=40)), ServerLoad(running=40, waiting=24)
    changes = []
    for look in range(10):
        limit.on_success(1.0, limit_binds=True)
        changes.append(limit.on_load(crowded, 64, 1.0 + look / 2))
    assert [change.limit for change in changes if change] == [44]


def test_a_long_queue_takes_half_of_what_is_in_flight_at_most() -> None:
    limit = looked_at(64)
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=0, waiting=500), 64, 1.0) == LimitDecision(32, "500 queued at the server")


def test_a_queue_that_the_server_takes_up_quickly_is_no_reason_to_cut() -> None:
    limit = looked_at(64, ServerLoad(running=10))
    for _ in range(30):
        limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=10, waiting=45), 55, 1.0) is None
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=10, waiting=45), 55, 2.0) == LimitDecision(27, "45 queued at the server")


def test_a_queue_ceiling_set_by_the_user_is_respected() -> None:
    limit = looked_at(64, queue_ceiling=2)
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=54, waiting=10), 64, 0.0) == LimitDecision(56, "10 queued at the server")


def test_a_cut_by_less_than_a_tenth_is_not_made() -> None:
    limit = looked_at(64, queue_ceiling=2)
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=56, waiting=8), 64, 0.0) is None
    limit.on_success(1.0, limit_binds=True)
    assert limit.on_load(ServerLoad(running=55, waiting=9), 64, 1.0) == LimitDecision(57, "9 queued at the server")


def test_a_cut_for_a_queue_does_not_end_the_search() -> None:
    limit = looked_at(64)
    limit.on_success(1.0, limit_binds=True)
    limit.on_load(ServerLoad(running=32, waiting=500), 64, 1.0)
    assert limit.on_load(ServerLoad(running=32), 32, 2.0) == LimitDecision(64, AVAILABLE)


def test_an_empty_server_with_a_queue_still_gets_one() -> None:
    limit = looked_at(1, queue_ceiling=0)
    limit.on_success(1.0, limit_binds=False)
    assert limit.on_load(ServerLoad(running=0, waiting=5), 1, 0.0) is None
    assert limit.current == 1


def test_a_queue_of_other_users_does_not_raise_the_limit() -> None:
    limit = InflightLimit(8, fixed=False)
    for now in range(10):
        limit.on_success(1.0, limit_binds=True)
        limit.on_load(ServerLoad(running=200, waiting=100), min(8, limit.current), float(now))
        assert limit.current <= 8


@pytest.mark.parametrize("load", [ServerLoad(running=8, kv_usage=0.9), ServerLoad(running=8, waiting=4)])
def test_the_limit_of_a_full_server_is_not_raised_until_a_poll_shows_capacity(load: ServerLoad) -> None:
    limit = looked_at(8, BUSY)
    assert limit.on_load(load, 8, 0.0) is None
    assert grow(limit, 30) == []
    assert limit.on_load(BUSY, 8, 1.0) == LimitDecision(16, AVAILABLE)


def test_one_look_after_another_within_an_episode_cuts_once() -> None:
    limit = InflightLimit(64, fixed=False)
    limits = []
    for number in range(5):
        limit.on_load(ServerLoad(running=60, preemptions=number), 60, number / 10)
        limits.append(limit.current)
    assert limits == [64, 48, 48, 48, 48]


def test_a_server_that_stops_telling_its_load_is_judged_by_its_answers_again() -> None:
    limit = InflightLimit(8, fixed=True)
    limit.on_load(ServerLoad(running=8), 8, 0.0)
    limit.on_overload(10.0, 0)
    assert grow(limit, 16) == []
    assert grow(limit, 10_000) == [5, 6, 7, 8]
