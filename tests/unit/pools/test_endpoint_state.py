"""Load of each endpoint, choice of the next endpoint, and reclaiming of batches."""

import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.pools.endpoint_state import EndpointState, PendingPrompt, PromptBatch, choose_endpoint
from batch_agent.pools.failure_policy import RECLAIMED, blames_endpoint, record_failure
from batch_agent.pools.stragglers import AnswerLengths, find_early, find_stragglers, late_endpoints


def batch(endpoint: int, count: int = 10) -> PromptBatch:
    return PromptBatch(endpoint, [PendingPrompt(at, "a") for at in range(count)])


def works(state: EndpointState, given: PromptBatch, chars_per_second: float, seconds: float, at: float = 0.0) -> None:
    """Its answers get longer, five times a second."""
    state.on_sent(given, at)
    state.on_accepted(given, at)
    for tick in range(1, round(seconds * 5) + 1):
        for asked in given.prompts:
            if not asked.chars:
                state.on_begun()
            asked.chars += round(chars_per_second / 5)
            state.on_output(round(chars_per_second / 5), at + tick / 5)


def endpoints(*speeds: float, seconds: float = 2.0) -> tuple[list[EndpointState], list[PromptBatch]]:
    states, batches = [EndpointState() for _ in speeds], [batch(endpoint) for endpoint in range(len(speeds))]
    for state, given, speed in zip(states, batches, speeds, strict=True):
        works(state, given, speed, seconds)
    return states, batches


def test_an_endpoint_has_the_pace_of_one_answer() -> None:
    (state,), _ = endpoints(50.0)
    assert state.pace == pytest.approx(50.0)


def test_answered_prompts_and_ended_batches_do_not_count_as_load() -> None:
    state, given = EndpointState(), batch(0, 3)
    state.on_sent(given, 0.0)
    assert state.unfinished == 3
    state.on_answered(given, 1)
    state.on_answered(given, 1)
    assert (state.unfinished, [asked.index for asked in given.unanswered]) == (2, [0, 2])
    state.on_ended(given)
    assert (state.unfinished, state.batches) == (0, [])


def test_a_batch_goes_to_the_endpoint_that_finishes_it_first() -> None:
    states, _ = endpoints(50.0, 100.0)
    assert choose_endpoint(states, [0, 1], 10, 256) == 1
    assert choose_endpoint(states, [0], 10, 256) == 0
    assert choose_endpoint(states, [], 10, 256) is None


def test_an_endpoint_with_room_for_half_a_batch_or_without_work_gets_it() -> None:
    states, _ = endpoints(50.0, 100.0)
    assert choose_endpoint(states, [0, 1], 10, 15) == 1
    assert choose_endpoint(states, [0, 1], 10, 14) is None
    assert choose_endpoint([EndpointState()], [0], 100, 15) == 0


def test_a_batch_of_a_slow_endpoint_is_reclaimed_and_none_of_equal_ones() -> None:
    states, batches = endpoints(10.0, 100.0)
    states[1].on_ended(batches[1])
    assert find_stragglers(states, [0, 1], batches[:1], 200.0, 2.0) == [batches[0]]
    states, batches = endpoints(90.0, 100.0)
    states[1].on_ended(batches[1])
    assert find_stragglers(states, [0, 1], batches[:1], 200.0, 2.0) == []


def test_own_batches_are_reclaimed_once_and_not_when_half_done() -> None:
    states, batches = endpoints(10.0, 100.0)
    states[1].on_ended(batches[1])
    assert find_stragglers(states, [0, 1], [], 200.0, 2.0) == []
    assert find_stragglers(states, [0], batches[:1], 200.0, 2.0) == []
    assert find_stragglers(states, [0, 1], batches[:1], 30.0, 2.0) == []
    batches[0].prompts[0].moves = 1
    assert find_stragglers(states, [0, 1], batches[:1], 200.0, 2.0) == []


def test_an_endpoint_is_late_when_the_queue_is_shorter_than_one_of_its_answers() -> None:
    states, _ = endpoints(10.0, 100.0)
    assert late_endpoints(states, [0, 1], 0, 1.0) == {0: pytest.approx(10.0, rel=0.1)}
    assert late_endpoints(states, [0, 1], 50, 1.0).keys() == {0}
    assert late_endpoints(states, [0, 1], 200, 1.0) == {}  # then it has time for a further one
    assert late_endpoints(states, [0, 1], 200, 0.2).keys() == {0}  # the longest answer is what it needs time for


def test_equal_endpoints_and_a_lone_one_are_not_late() -> None:
    states, _ = endpoints(100.0, 100.0, 95.0)
    assert late_endpoints(states, [0, 1, 2], 0, 0.5) == {}
    assert late_endpoints(states, [2], 0, 0.5) == {}
    assert late_endpoints([*states, EndpointState()], [0, 1, 2, 3], 0, 0.5) == {}  # of the last one nothing is known


def test_a_late_endpoint_gives_back_what_it_has_not_begun_last_batch_first() -> None:
    states, batches = endpoints(10.0, 100.0)
    waiting = [batch(0), batch(0)]
    for each in waiting:
        states[0].on_sent(each, 2.0)
    late = late_endpoints(states, [0, 1], 0, 1.0)
    assert find_early(states, late, [*batches, *waiting], 200.0) == [waiting[1]]
    waiting[1].is_reclaimed = True
    assert find_early(states, late, [*batches, *waiting], 200.0) == [waiting[0]]
    assert find_early(states, {}, [*batches, *waiting], 200.0) == []
    waiting[0].prompts[0].moves = 1
    assert find_early(states, late, [*batches, waiting[0]], 400.0) == [batches[0]]  # a twentieth is done


def test_a_late_endpoint_gives_nothing_back_that_is_lost_for_a_small_gain() -> None:
    states, batches = endpoints(10.0, 100.0)
    assert find_early(states, {0: 10.0}, batches, 400.0) == [batches[0]]
    assert find_early(states, {0: 10.0}, batches, 150.0) == []  # more than a tenth is done
    assert find_early(states, {0: 1.5}, batches, 400.0) == []
    hasty, begun = endpoints(10.0, 100.0, seconds=1.0)
    assert find_early(hasty, {0: 10.0}, begun, 400.0) == []  # its pace may still change


def test_the_prompts_of_an_ended_batch_are_not_running() -> None:
    (state,), (given,) = endpoints(50.0)
    assert state.running == 10
    state.on_answered(given, 3)
    state.on_answered(given, 3)
    assert state.running == 9
    state.on_ended(given)
    assert state.running == 0


def test_answer_lengths_are_even_until_a_short_answer_is_complete() -> None:
    lengths = AnswerLengths()
    assert lengths.evenness(40) == 1.0
    assert lengths.typical(40, 10) == 80.0
    lengths.add(10)
    assert lengths.evenness(40) == 0.25
    lengths.add(50)
    assert lengths.evenness(40) == pytest.approx(0.6)
    assert lengths.typical(0, 8) == 30.0


def test_all_batches_of_a_silent_endpoint_are_reclaimed_after_a_while() -> None:
    states = [EndpointState(), EndpointState()]
    silent, other = [batch(0), batch(0)], batch(1)
    for each in silent:
        states[0].on_sent(each, 0.0)
    assert find_stragglers(states, [0, 1], silent, 100.0, 60.0) == []  # the other says nothing either
    states[1].on_sent(other, 0.0)
    states[1].on_accepted(other, 2.0)
    states[1].on_output(5, 2.0)
    assert find_stragglers(states, [0, 1], silent, 100.0, 9.0) == []  # five times as long as that is not over
    assert find_stragglers(states, [0, 1], silent, 100.0, 11.0) == silent
    states[0].on_output(5, 11.0)
    assert len(find_stragglers(states, [0, 1], silent, 100.0, 30.0)) == 1  # it is only slow


def test_a_long_unstreamed_answer_is_not_mistaken_for_a_hang() -> None:
    states = [EndpointState(), EndpointState()]
    long, short = (
        PromptBatch(0, [PendingPrompt(0, "a")], is_unstreamed=True),
        PromptBatch(1, [PendingPrompt(1, "a")], is_unstreamed=True),
    )
    for each in (long, short):
        states[each.endpoint].on_sent(each, 0.0)
    states[1].on_accepted(short, 2.0)
    states[1].on_output(200, 2.0)
    states[1].on_answered(short, 0)
    states[1].on_ended(short)
    assert [find_stragglers(states, [0, 1], [long], 200.0, now) for now in (3.0, 6.0, 9.9)] == [[]] * 3
    assert find_stragglers(states, [0, 1], [long], 200.0, 11.0) == [long]
    long.prompts[0].moves = 1
    assert find_stragglers(states, [0, 1], [long], 200.0, 60.0) == []


def refused(state: EndpointState, times: int, retry_after: float | None, now: float) -> bool:
    """Whether the last of so many lists in a row shows that there is no time for anybody."""
    has_no_time = False
    for _ in range(times):
        batch = PromptBatch(0, [PendingPrompt(0, "x")])
        state.on_sent(batch, now)
        has_no_time = state.on_refused(batch, retry_after, now)
        state.on_ended(batch)
    return has_no_time


def test_an_overloaded_endpoint_is_paused_for_longer_each_time() -> None:
    state = EndpointState()
    assert not refused(state, 9, None, 0.0)
    assert refused(state, 1, None, 0.0)
    assert refused(state, 1, None, 0.1)  # another list, the same refusal
    assert state.paused_until == 0.5
    assert refused(state, 4, None, 1.0)
    assert state.paused_until == 2.0
    assert refused(state, 4, 3.0, 5.0)
    assert state.paused_until == 8.0
    assert refused(state, 4, 9999.0, 10.0)
    assert state.paused_until == 40.0
    state.on_output(1, 50.0)
    assert refused(state, 4, None, 50.0)
    assert state.paused_until == 50.5


def test_an_endpoint_that_refuses_one_batch_in_five_is_not_paused() -> None:
    state = EndpointState()
    for _ in range(500):
        assert not refused(state, 1, 60.0, 0.0)
        for _ in range(4):
            batch = PromptBatch(0, [PendingPrompt(0, "x")])
            state.on_sent(batch, 0.0)
            state.on_ended(batch)
    assert state.paused_until < 0.0


BROKEN = BackendError(ErrorKind.CONNECTION, "broke")


def test_prompts_whose_requests_break_off_are_sent_in_smaller_batches() -> None:
    asked = [PendingPrompt(at, "a") for at in range(9)]
    sizes = []
    for _ in range(5):
        given = PromptBatch(0, asked)
        assert record_failure(given, BROKEN, EndpointState(), [0]) == []
        sizes.append(asked[0].max_batch_size)
        asked = asked[: asked[0].max_batch_size]
    assert sizes[1:] == [5, 3, 2, 1]
    assert record_failure(PromptBatch(0, asked), BROKEN, EndpointState(), [0]) == asked


def test_a_prompt_fails_only_after_a_second_endpoint_has_tried_it() -> None:
    asked = [PendingPrompt(0, "a")]
    assert [record_failure(PromptBatch(0, asked), BROKEN, EndpointState(), [0, 1]) for _ in range(4)] == [[]] * 4
    assert record_failure(PromptBatch(1, asked), BROKEN, EndpointState(), [0, 1]) == asked


def test_unreachable_endpoints_and_reclaims_do_not_count_against_a_prompt() -> None:
    asked = [PendingPrompt(0, "a")]
    gone = BackendError(ErrorKind.UNAVAILABLE, "gone")
    for error in [gone, RECLAIMED] * 20:
        assert record_failure(PromptBatch(0, asked), error, EndpointState(), [0]) == []
    assert (asked[0].failures, asked[0].moves) == (0, 20)


def test_an_interrupted_request_blames_its_endpoint_only_the_first_time() -> None:
    state, given = EndpointState(), batch(0)
    assert blames_endpoint(given, BROKEN, state)
    record_failure(given, BROKEN, state, [0])
    assert not blames_endpoint(given, BROKEN, state)
    assert blames_endpoint(given, BackendError(ErrorKind.UNAVAILABLE, "gone"), state)


def test_a_timeout_blames_an_endpoint_only_if_it_is_silent_to_all() -> None:
    late, state, given = BackendError(ErrorKind.TURN_TIMEOUT, "late"), EndpointState(), batch(0)
    state.on_sent(given, 1.0)
    assert blames_endpoint(given, late, state)
    state.on_output(3, 2.0)
    assert not blames_endpoint(given, late, state)
