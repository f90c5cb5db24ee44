"""Properties of the choice of lanes: never slower than the time allows, never faster than it needs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.requests import Lane
from batch_agent.schedule.lanes.lane_choice import LanePaces, LaneSituation, choose_lane, latest_end

ORDER: tuple[Lane, ...] = ("batch", "flex", "standard")
"""The cheapest first, the fastest last."""
lanes = st.sets(st.sampled_from(ORDER[:-1])).map(lambda some: [lane for lane in ORDER if lane in {*some, "standard"}])
paces = st.builds(LanePaces, standard=st.floats(0.1, 600), flex=st.floats(0.1, 3600), batch=st.floats(1, 100_000))
situations = st.builds(
    LaneSituation,
    lanes,
    turns_left=st.floats(1, 50),
    paces=paces,
    time_left=st.none() | st.floats(-100, 1e6),
    rounds_left=st.floats(0, 1000),
    agents_left=st.none() | st.integers(1, 10_000),
    agents=st.none() | st.integers(1, 10_000),
    can_pay=st.booleans(),
)


@given(situations)
def test_the_lane_is_one_of_those_that_the_backend_has(situation: LaneSituation) -> None:
    assert choose_lane(situation) in situation.lanes


@given(situations)
def test_a_slower_lane_leaves_time_for_the_rest_in_the_lane_standard(situation: LaneSituation) -> None:
    lane = choose_lane(situation)
    if situation.time_left is None or lane == "standard" or not situation.can_pay:
        return
    end = latest_end(situation.time_left, situation.turns_left, situation.paces, situation.rounds_left)
    assert situation.paces.of(lane) <= end
    assert end <= situation.time_left - situation.turns_left * situation.paces.standard


@given(situations, st.floats(0, 1e6))
def test_more_time_never_makes_a_request_more_expensive(situation: LaneSituation, more: float) -> None:
    if situation.time_left is None:
        return
    later = replace(situation, time_left=situation.time_left + more)
    assert ORDER.index(choose_lane(later)) <= ORDER.index(choose_lane(situation)) or not situation.can_pay


@given(situations)
def test_without_a_deadline_only_stragglers_leave_the_cheapest_lane(situation: LaneSituation) -> None:
    situation = replace(situation, time_left=None)
    lane = choose_lane(situation)
    if lane != situation.lanes[0]:
        assert situation.agents_left is not None
        assert situation.agents is not None
        assert situation.agents_left < situation.agents
        assert situation.agents_left <= max(1, situation.agents / 50)


@given(situations)
def test_without_money_nothing_takes_the_lane_standard_if_there_is_another(situation: LaneSituation) -> None:
    poor = replace(situation, can_pay=False)
    assert (choose_lane(poor) == "standard") == (list(poor.lanes) == ["standard"])


@given(situations)
def test_money_only_ever_adds_the_lane_standard(situation: LaneSituation) -> None:
    poor, rich = choose_lane(replace(situation, can_pay=False)), choose_lane(replace(situation, can_pay=True))
    assert rich in (poor, "standard")


@given(situations)
def test_a_single_lane_is_taken_whatever_the_situation(situation: LaneSituation) -> None:
    assert choose_lane(replace(situation, lanes=["standard"])) == "standard"
