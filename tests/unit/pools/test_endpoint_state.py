"""What is under way at each endpoint, who gets the next list, and whose is taken back."""

import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.pools.endpoint_state import EndpointState, PendingPrompt, PromptBatch, choose_endpoint, find_stragglers
from batch_agent.pools.failure_policy import TAKEN_BACK, blames_endpoint, record_failure


def batch(place: int, count: int = 10) -> PromptBatch:
    return PromptBatch(place, [PendingPrompt(at, "a") for at in range(count)])


def works(lane: EndpointState, given: PromptBatch, chars_per_second: float, seconds: float, at: float = 0.0) -> None:
    """Its answers get longer, five times a second."""
    lane.began(given, at)
    lane.accepted(given, at)
    for tick in range(1, round(seconds * 5) + 1):
        for asked in given.asked:
            asked.chars += round(chars_per_second / 5)
            lane.heard(round(chars_per_second / 5), at + tick / 5)


def crew(*speeds: float, seconds: float = 2.0) -> tuple[list[EndpointState], list[PromptBatch]]:
    lanes, batches = [EndpointState() for _ in speeds], [batch(place) for place in range(len(speeds))]
    for lane, given, speed in zip(lanes, batches, speeds, strict=True):
        works(lane, given, speed, seconds)
    return lanes, batches


def test_an_endpoint_has_the_pace_of_one_answer() -> None:
    (lane,), _ = crew(50.0)
    assert lane.pace == pytest.approx(50.0)


def test_what_is_answered_or_over_is_no_load() -> None:
    lane, given = EndpointState(), batch(0, 3)
    lane.began(given, 0.0)
    assert lane.unfinished == 3
    lane.answered(given, 1)
    lane.answered(given, 1)
    assert (lane.unfinished, [asked.index for asked in given.left]) == (2, [0, 2])
    lane.ended(given)
    assert (lane.unfinished, lane.batches) == (0, [])


def test_a_list_goes_where_it_is_done_first() -> None:
    lanes, _ = crew(50.0, 100.0)
    assert choose_endpoint(lanes, [0, 1], 10, 256) == 1
    assert choose_endpoint(lanes, [0], 10, 256) == 0
    assert choose_endpoint(lanes, [], 10, 256) is None


def test_an_endpoint_with_room_for_half_a_list_or_an_idle_one_gets_a_list() -> None:
    lanes, _ = crew(50.0, 100.0)
    assert choose_endpoint(lanes, [0, 1], 10, 15) == 1
    assert choose_endpoint(lanes, [0, 1], 10, 14) is None
    assert choose_endpoint([EndpointState()], [0], 100, 15) == 0


def test_a_list_of_a_slow_endpoint_is_taken_back_and_none_of_equal_ones() -> None:
    lanes, batches = crew(10.0, 100.0)
    lanes[1].ended(batches[1])
    assert find_stragglers(lanes, [0, 1], batches[:1], 200.0, 2.0) == [batches[0]]
    lanes, batches = crew(90.0, 100.0)
    lanes[1].ended(batches[1])
    assert find_stragglers(lanes, [0, 1], batches[:1], 200.0, 2.0) == []


def test_only_own_lists_are_taken_back_once_and_not_when_they_are_half_done() -> None:
    lanes, batches = crew(10.0, 100.0)
    lanes[1].ended(batches[1])
    assert find_stragglers(lanes, [0, 1], [], 200.0, 2.0) == []
    assert find_stragglers(lanes, [0], batches[:1], 200.0, 2.0) == []
    assert find_stragglers(lanes, [0, 1], batches[:1], 30.0, 2.0) == []
    batches[0].asked[0].moves = 1
    assert find_stragglers(lanes, [0, 1], batches[:1], 200.0, 2.0) == []


def test_all_lists_that_an_endpoint_says_nothing_to_are_taken_back_after_a_while() -> None:
    lanes = [EndpointState(), EndpointState()]
    silent, other = [batch(0), batch(0)], batch(1)
    for each in silent:
        lanes[0].began(each, 0.0)
    assert find_stragglers(lanes, [0, 1], silent, 100.0, 60.0) == []  # the other says nothing either
    lanes[1].began(other, 0.0)
    lanes[1].accepted(other, 2.0)
    lanes[1].heard(5, 2.0)
    assert find_stragglers(lanes, [0, 1], silent, 100.0, 9.0) == []  # five times as long as that is not over
    assert find_stragglers(lanes, [0, 1], silent, 100.0, 11.0) == silent
    lanes[0].heard(5, 11.0)
    assert len(find_stragglers(lanes, [0, 1], silent, 100.0, 30.0)) == 1  # it is only slow


def test_a_long_answer_that_comes_whole_is_not_taken_for_one_that_hangs() -> None:
    lanes = [EndpointState(), EndpointState()]
    long, short = (
        PromptBatch(0, [PendingPrompt(0, "a")], is_whole=True),
        PromptBatch(1, [PendingPrompt(1, "a")], is_whole=True),
    )
    for each in (long, short):
        lanes[each.place].began(each, 0.0)
    lanes[1].accepted(short, 2.0)
    lanes[1].heard(200, 2.0)
    lanes[1].answered(short, 0)
    lanes[1].ended(short)
    assert [find_stragglers(lanes, [0, 1], [long], 200.0, now) for now in (3.0, 6.0, 9.9)] == [[]] * 3
    assert find_stragglers(lanes, [0, 1], [long], 200.0, 11.0) == [long]
    long.asked[0].moves = 1
    assert find_stragglers(lanes, [0, 1], [long], 200.0, 60.0) == []


def refused(lane: EndpointState, times: int, retry_after: float | None, now: float) -> bool:
    """Whether the last of so many lists in a row shows that there is no time for anybody."""
    has_no_time = False
    for _ in range(times):
        batch = PromptBatch(0, [PendingPrompt(0, "x")])
        lane.began(batch, now)
        has_no_time = lane.refused(batch, retry_after, now)
        lane.ended(batch)
    return has_no_time


def test_an_endpoint_that_has_no_time_for_anybody_is_left_alone_for_longer_each_time() -> None:
    lane = EndpointState()
    assert not refused(lane, 9, None, 0.0)
    assert refused(lane, 1, None, 0.0)
    assert refused(lane, 1, None, 0.1)  # another list, the same refusal
    assert lane.rests_until == 0.5
    assert refused(lane, 4, None, 1.0)
    assert lane.rests_until == 2.0
    assert refused(lane, 4, 3.0, 5.0)
    assert lane.rests_until == 8.0
    assert refused(lane, 4, 9999.0, 10.0)
    assert lane.rests_until == 40.0
    lane.heard(1, 50.0)
    assert refused(lane, 4, None, 50.0)
    assert lane.rests_until == 50.5


def test_an_endpoint_that_has_no_time_for_one_list_in_five_is_asked_on() -> None:
    lane = EndpointState()
    for _ in range(500):
        assert not refused(lane, 1, 60.0, 0.0)
        for _ in range(4):
            batch = PromptBatch(0, [PendingPrompt(0, "x")])
            lane.began(batch, 0.0)
            lane.ended(batch)
    assert lane.rests_until < 0.0


BROKEN = BackendError(ErrorKind.CONNECTION, "broke")


def test_prompts_under_which_requests_break_off_go_in_ever_smaller_lists() -> None:
    asked = [PendingPrompt(at, "a") for at in range(9)]
    sizes = []
    for _ in range(5):
        given = PromptBatch(0, asked)
        assert record_failure(given, BROKEN, EndpointState(), [0]) == []
        sizes.append(asked[0].company)
        asked = asked[: asked[0].company]
    assert sizes[1:] == [5, 3, 2, 1]
    assert record_failure(PromptBatch(0, asked), BROKEN, EndpointState(), [0]) == asked


def test_a_prompt_is_given_up_only_after_another_endpoint_had_it_too() -> None:
    asked = [PendingPrompt(0, "a")]
    assert [record_failure(PromptBatch(0, asked), BROKEN, EndpointState(), [0, 1]) for _ in range(4)] == [[]] * 4
    assert record_failure(PromptBatch(1, asked), BROKEN, EndpointState(), [0, 1]) == asked


def test_an_unreachable_endpoint_or_a_faster_one_is_not_blamed_on_the_prompt() -> None:
    asked = [PendingPrompt(0, "a")]
    gone = BackendError(ErrorKind.UNAVAILABLE, "gone")
    for error in [gone, TAKEN_BACK] * 20:
        assert record_failure(PromptBatch(0, asked), error, EndpointState(), [0]) == []
    assert (asked[0].failures, asked[0].moves) == (0, 20)


def test_a_request_that_breaks_off_tells_of_its_endpoint_only_the_first_time() -> None:
    lane, given = EndpointState(), batch(0)
    assert blames_endpoint(given, BROKEN, lane)
    record_failure(given, BROKEN, lane, [0])
    assert not blames_endpoint(given, BROKEN, lane)
    assert blames_endpoint(given, BackendError(ErrorKind.UNAVAILABLE, "gone"), lane)


def test_a_timeout_is_blamed_on_an_endpoint_that_answers_no_other_prompt() -> None:
    late, lane, given = BackendError(ErrorKind.TURN_TIMEOUT, "late"), EndpointState(), batch(0)
    lane.began(given, 1.0)
    assert blames_endpoint(given, late, lane)
    lane.heard(3, 2.0)
    assert not blames_endpoint(given, late, lane)
