"""What is shortened first, and what is said in its place."""

import pytest
from tests.support.conversations import call, give, say, talk

from batch_agent.agent.compaction import CompactContext, ToolOutputSize, plan_compaction
from batch_agent.agent.context_size import ContextSize
from batch_agent.agent.conversation import Conversation, Generate
from batch_agent.core.agent_config import Compaction
from batch_agent.core.facts import Claimed, Compacted, Replied, Returned, Settled, Shortened
from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.options import ContextLimits
from batch_agent.core.requests import Reply, Usage


def held(*lengths: int, newest: int = 1, **more: bool) -> list[ToolOutputSize]:
    last = len(lengths) - newest
    return [
        ToolOutputSize(at, "look", "x" * chars, chars, is_newest=at >= last, **more) for at, chars in enumerate(lengths)
    ]


def planned(results: list[ToolOutputSize], most: int, chars: int = 0, summarizes: bool = False) -> dict[int, str]:
    """The new contents, by place."""
    size = ContextSize(chars + sum(len(each.content) for each in results))
    step = plan_compaction(Compaction(most, summarizes), results, size)
    return {} if step is None else {each.index: each.content for each in step.done({}).results}


LINE = "[elided: {} characters that look gave; call it again if you need them]"


def test_a_context_that_fits_is_not_compacted() -> None:
    assert planned(held(4_000, 4_000), most=2_000) == {}


def test_the_oldest_results_are_compacted_first_until_half_is_left() -> None:
    left = planned(held(4_000, 4_000, 4_000, 4_000, 4_000), most=4_900)
    assert left == {0: LINE.format("4,000"), 1: LINE.format("4,000"), 2: LINE.format("4,000")}


def test_results_that_free_little_stay_if_other_results_are_enough() -> None:
    results = held(210, 220, 8_000, 8_000, 8_000, 400)
    assert list(planned(results, most=6_000)) == [2, 3]
    assert list(planned(results, most=300)) == [0, 1, 2, 3, 4]


def test_errors_and_short_results_are_not_compacted() -> None:
    assert planned(held(4_000, 4_000, 4_000, stays=True), most=1_000) == {}
    assert planned(held(200, 200, 200), most=10) == {}


def test_the_newest_results_are_cut_to_equal_length_only_if_they_alone_do_not_fit() -> None:
    left = planned(held(4_000, 9_000, 500, 7_000, newest=3), most=2_000)
    assert left[0] == LINE.format("4,000")
    assert sorted(left) == [0, 1, 3]
    assert abs(len(left[1]) - len(left[3])) < 5
    shown = left[1].index("\n[cut here")
    assert left[1].endswith(f"[cut here: {shown:,} of 9,000 characters are shown; more do not fit into the context]")
    assert sum(map(len, left.values())) + 500 <= 4 * 1_500 + 100


def test_a_result_without_room_beside_a_long_task_is_dropped() -> None:
    left = planned(held(5_000), most=1_000, chars=8_000)
    assert left == {0: "\n[cut here: 0 of 5,000 characters are shown; more do not fit into the context]"}


def test_results_of_earlier_compactions_keep_their_summaries_while_others_can_go() -> None:
    summary = ToolOutputSize(0, "look", "s" * 1_000, 50_000, is_summary=True)
    whole = [ToolOutputSize(at, "look", "x" * 8_000, 8_000, is_newest=at == 3) for at in (1, 2, 3)]
    assert list(planned([summary, *whole], most=5_000)) == [1, 2]
    left = planned([summary, *whole], most=2_000, summarizes=True)
    assert left[0] == LINE.format("50,000")


def test_a_compacted_write_tells_the_model_not_to_repeat_it() -> None:
    left = planned(held(9_000, 4_000, made_a_change=True), most=2_000)
    assert left[0] == "[elided: 9,000 characters that look gave; the call was made, do not repeat it]"


def test_summaries_are_requested_only_for_long_results() -> None:
    size = ContextSize(4 * 6_000)
    step = plan_compaction(Compaction(4_000, summarizes=True), held(16_000, 4_000, 240, 400), size)
    assert step is not None
    assert [each.summary_tokens for each in step.results] == [500, 125]
    fact = step.done({0: " Short. ", 1: "word " * 5_000}, 2.0)
    assert fact.results[0] == Shortened(0, "[a summary of 16,000 characters that look gave]\nShort.", is_summary=True)
    assert len(fact.results[1].content) == 750
    assert (fact.before, fact.seconds) == (6_000, 2.0)
    assert fact.after == round(6_000 - (20_000 - sum(len(each.content) for each in fact.results)) / 4)
    assert [each.content for each in step.done({0: " ", 1: ""}).results] == [
        LINE.format("16,000"),
        LINE.format("4,000"),
    ]


@pytest.mark.parametrize(
    ("context", "window", "max_tokens", "most"),
    [
        (ContextLimits(), 10_000, None, 8_500),
        (ContextLimits(context_tokens=1_000, compact_at=0.5), 10_000, None, 500),
        (ContextLimits(), 10_000, 4_000, 6_000),
        (ContextLimits(), 10_000, 20_000, 8_500),
        (ContextLimits(), None, None, None),
        (ContextLimits(compact_at=None), 10_000, None, None),
    ],
)
def test_the_token_threshold_of_compaction_follows_the_window_and_max_tokens(
    context: ContextLimits, window: int | None, max_tokens: int | None, most: int | None
) -> None:
    made = Compaction.of(context, window, max_tokens)
    assert (made and made.trigger_tokens) == most


def test_compaction_options_are_taken_from_the_context_options() -> None:
    made = Compaction.of(ContextLimits(compact_with="summarize", compact_model="small"), 1_000, None, 70)
    assert made == Compaction(850, True, "small", 70)


def long_talk(mode: str = "native", thoughts: tuple[Thought, ...] = ()) -> Conversation:
    """Three pages of 4,000 characters, in a window that has room for two."""
    life = talk(mode=mode, compaction=Compaction(2_600), turns=9)
    for number in range(3):
        said = f'{{"tool": "look", "arguments": {{"at": {number}}}}}' if mode == "action" else "hm"
        calls = (ToolCall(f"c{number}", "look", '{"at": 1}'),) if mode == "native" else ()
        life.apply(Replied(Reply(said, "calls", Usage(1_000 * number + 10, 0, 10), calls, thoughts)))
        life.apply(give(life.next(), "x" * 4_000))
    return life


def test_compaction_keeps_signed_reasoning_calls_and_their_ids() -> None:
    thoughts = (Thought("because", "signed"), Thought(redacted="secret"))
    life = long_talk(thoughts=thoughts)
    step = life.next()
    assert isinstance(step, CompactContext)
    life.apply(step.done({}))
    step = life.next()
    assert isinstance(step, Generate)
    task, said, told, *_ = step.request.messages
    assert task == User("Do it.")
    assert said == Assistant("hm", (ToolCall("c0", "look", '{"at": 1}'),), thoughts)
    assert told == ToolResults((ToolResult(ToolCall("c0", "look", '{"at": 1}'), LINE.format("4,000"), False, 0.5),))
    assert step.request.messages[-1] != told


def test_in_action_mode_the_compaction_note_replaces_the_result() -> None:
    life = long_talk("action")
    step = life.next()
    assert isinstance(step, CompactContext)
    life.apply(step.done({}))
    step = life.next()
    assert isinstance(step, Generate)
    assert step.request.messages[2] == User(f"Result of look: {LINE.format('4,000')}")
    assert life.result(0.0).transcript[2] == step.request.messages[2]


def test_a_write_is_recognized_by_its_claim() -> None:
    life = talk(compaction=Compaction(200), turns=9)
    life.apply(call(id="c0"))
    result = ToolResult(ToolCall("c0", "look", "{}"), "x" * 4_000)
    life.apply(Claimed(result.call))
    life.apply(Settled(result))
    life.apply(Returned((result,)))
    life.apply(say("", "calls", ToolCall("c1", "look", "{}")))
    life.apply(give(life.next(), "y" * 4_000))
    step = life.next()
    assert isinstance(step, CompactContext)
    assert "do not repeat it" in step.done({}).results[0].content


def test_unknown_positions_in_a_compaction_fact_are_ignored() -> None:
    life = long_talk()
    before = life.result(0.0).transcript
    life.apply(Compacted((Shortened(17, "nothing"),)))
    assert life.result(0.0).transcript == before
