from batch_agent.core.facts import Fact, Replied, Sampled, Started
from batch_agent.core.requests import NO_USAGE, Reply, TurnTokens, packed_ids, packed_logprobs
from batch_agent.rollouts.rollout import Break, Rollout, TokenSequence, rollout_of
from batch_agent.rollouts.token_record import TokenRecord, encode_record

REPLIED = Replied(Reply("", "stop", NO_USAGE))
STARTED = Started(0, "x", "task")


def turn(prompt: list[int], sampled: list[int]) -> TurnTokens:
    return TurnTokens(packed_ids(prompt), packed_ids(sampled), packed_logprobs([-1.0] * len(sampled)), "stop", "m")


def sampled(
    number: int,
    prompt: list[int],
    said: list[int],
    before: list[int] | None = None,
    attempt: str = "",
    thread: str = "",
) -> Sampled:
    record = TokenRecord(turn(prompt, said), number, attempt, thread)
    return Sampled(encode_record(record, packed_ids(before or [])))


def rollout(*facts: Fact) -> Rollout:
    found = rollout_of([STARTED, *facts])
    assert found is not None
    return found


def test_turns_that_continue_each_other_are_one_sequence_with_a_mask() -> None:
    found = rollout(sampled(0, [1, 2], [3, 4]), REPLIED, sampled(1, [1, 2, 3, 4, 5], [6], before=[1, 2, 3, 4]), REPLIED)
    assert found.breaks == ()
    assert list(found.sequences()) == [
        TokenSequence([1, 2], [3, 4, 5, 6], [1, 1, 0, 1], [-1.0, -1.0, 0.0, -1.0], thread=0, first_turn=0, turns=2)
    ]


def test_a_prompt_that_does_not_continue_is_a_break_at_which_sequences_end() -> None:
    found = rollout(
        sampled(0, [1, 2], [3, 4]),
        REPLIED,
        sampled(1, [1, 2, 3, 9, 5], [6]),
        REPLIED,
        sampled(2, [1, 2, 3, 9, 5, 6, 7], [8], before=[1, 2, 3, 9, 5, 6]),
        REPLIED,
    )
    assert found.breaks == (Break(thread=0, turn=1, position=3, expected=4),)
    first, second = found.sequences()
    assert (first.prompt_ids, first.completion_ids, first.mask) == ([1, 2], [3, 4], [1, 1])
    assert (second.prompt_ids, second.completion_ids, second.mask) == ([1, 2, 3, 9, 5], [6, 7, 8], [1, 0, 1])
    assert (second.first_turn, second.turns) == (1, 2)


def test_a_turn_that_was_repeated_after_a_crash_counts_once() -> None:
    found = rollout(sampled(0, [1], [2]), sampled(0, [1], [3]), REPLIED)
    assert [each.sampled for each in found.turns] == [packed_ids([3])]


def test_a_request_without_a_reply_is_no_part_of_the_rollout() -> None:
    assert rollout_of([STARTED, sampled(0, [1], [2])]) is None
    assert len(rollout(sampled(0, [1], [2]), REPLIED, sampled(1, [1, 2, 3], [4])).turns) == 1


def test_turns_of_a_run_without_tokens_are_counted() -> None:
    found = rollout(REPLIED, sampled(1, [1], [2]), REPLIED)
    assert (found.missing, len(found.turns)) == (1, 1)
    assert rollout_of([STARTED, REPLIED]) is None


def test_a_program_that_was_started_again_has_only_the_requests_of_its_last_attempt() -> None:
    found = rollout(
        sampled(0, [1], [2], attempt="a"),
        sampled(1, [1, 2], [3], attempt="a", before=[1, 2]),
        sampled(0, [1], [4], attempt="b"),
        REPLIED,
    )
    assert [each.sampled for each in found.turns] == [packed_ids([4])]


def test_other_conversations_of_a_program_are_threads_of_their_own() -> None:
    found = rollout(
        sampled(0, [9], [9], attempt="a", thread="title"),
        sampled(2, [1, 2, 3], [4], attempt="a", thread="task", before=[1, 2]),
        sampled(1, [1], [2], attempt="a", thread="task"),
        REPLIED,
    )
    assert [[each.sampled for each in thread] for thread in found.threads] == [
        [packed_ids([2]), packed_ids([4])],
        [packed_ids([9])],
    ]
    assert found.breaks == ()
    assert [(each.thread, each.mask) for each in found.sequences()] == [(0, [1, 0, 1]), (1, [1])]


def test_the_requests_of_a_program_that_failed_are_kept() -> None:
    assert len(rollout(sampled(0, [1], [2], attempt="a")).turns) == 1
