"""Whatever tools give and servers count: compaction shortens old results, and nothing else."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversations import rules

from batch_agent.agent.compaction import CompactContext, ToolOutputSize, plan_compaction
from batch_agent.agent.context_size import ContextSize, chars_in
from batch_agent.agent.conversation import CallTools, Conversation, Done, Generate, Step
from batch_agent.core.agent_config import AgentConfig, Compaction, Job, ToolMode
from batch_agent.core.facts import Compacted, Fact, Replied, Returned, Shortened
from batch_agent.core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import Reply, Usage
from batch_agent.store.codec import decode, encode

JOB = Job(0, "key", "input", "Do it. " * 20)
PROMPT = 400
LENGTHS = st.sampled_from([0, 3, 90, 400, 1_000, 2_000, 5_000, 5_000, 20_000])
THOUGHTS = st.lists(st.builds(Thought, st.just("hm"), st.sampled_from(["", "signed"])), max_size=1).map(tuple)
COUNTED = st.sampled_from([0.0, 1.5, 4.0, 7.0])
"""Characters of a token, as the server has them; 0: it counts nothing."""


@dataclass
class Life:
    rules: AgentConfig
    facts: list[Fact]
    steps: list[Step]
    end: Conversation


def compaction(summarizes: bool, most: int) -> Compaction:
    return Compaction(most, summarizes, prompt_chars=PROMPT)


@st.composite
def lives(draw: st.DrawFn, mode: ToolMode | None = None) -> Life:
    modes: list[ToolMode] = ["native", "action"]
    made = rules(
        mode=draw(st.sampled_from([mode] if mode else modes)),
        turns=12,
        retries=1,
        compaction=compaction(draw(st.booleans()), draw(st.sampled_from([150, 1_500, 4_000, 8_000]))),
    )
    talk, per_token = Conversation(made, JOB), draw(COUNTED)
    facts: list[Fact] = []
    steps: list[Step] = []
    while not isinstance(step := talk.next(), Done):
        assert len(facts) < 100
        match step:
            case Generate():
                fact: Fact = Replied(draw(_replies(made.tool_mode, step, per_token)))
            case CallTools():
                fact = Returned(tuple(draw(_results(call)) for call in step.calls))
            case CompactContext():
                fact = _compacted(draw, step)
        talk.apply(fact)
        facts.append(fact)
        steps.append(step)
    return Life(made, facts, steps, talk)


@st.composite
def _replies(draw: st.DrawFn, mode: ToolMode, step: Generate, per_token: float) -> Reply:
    sent = PROMPT + chars_in(step.request.messages)
    usage = Usage(int(sent / per_token), 0, 20) if per_token else Usage()
    if draw(st.integers(0, 9)) == 0:
        return Reply("", "stop", usage)  # nothing that can be used: it is asked for again
    if mode == "action":
        return Reply('{"tool": "look", "arguments": {"at": 1}}', "stop", usage, (), draw(THOUGHTS))
    calls = tuple(ToolCall(f"c{number}", "look", '{"at": 1}') for number in range(draw(st.integers(1, 3))))
    return Reply("Let me look.", "calls", usage, calls, draw(THOUGHTS))


@st.composite
def _results(draw: st.DrawFn, call: ToolCall) -> ToolResult:
    return ToolResult(call, "x" * draw(LENGTHS), is_error=draw(st.integers(0, 5)) == 0)


def _compacted(draw: st.DrawFn, step: CompactContext) -> Compacted:
    """As the engine does it, with a model that keeps to nothing."""
    wanted = [each for each in step.results if each.summary_tokens]
    texts = {each.output.index: draw(st.sampled_from([None, "", "short", "long " * 5_000])) for each in wanted}
    return step.done({place: text for place, text in texts.items() if text is not None}, 0.5)


def messages(talk: Conversation) -> list[Message]:
    return [*talk._messages, *talk._reask]


def size(talk: Conversation) -> ContextSize:
    assert talk._compaction_state is not None
    return talk._compaction_state.size


def results(talk: Conversation) -> list[ToolResult]:
    return [result for message in talk._messages if isinstance(message, ToolResults) for result in message.results]


def compactions(life: Life) -> list[tuple[Conversation, Conversation, CompactContext]]:
    """The conversation before and after each, and what it did."""
    found = []
    for at, step in enumerate(life.steps):
        if isinstance(step, CompactContext):
            before, after = Conversation(life.rules, JOB), Conversation(life.rules, JOB)
            before.replay(life.facts[:at])
            after.replay(life.facts[: at + 1])
            found.append((before, after, step))
    return found


@pytest.mark.slow
@given(lives())
def test_a_replayed_conversation_equals_the_live_one_byte_for_byte(life: Life) -> None:
    kept = [decode(*encode(fact)) for fact in life.facts]
    assert kept == life.facts
    for lived in range(len(kept) + 1):
        again = Conversation(life.rules, JOB)
        again.replay(kept[:lived])
        assert again.next() == again.next() == (life.steps[lived] if lived < len(life.steps) else life.end.next())
    assert again.result(1.0) == life.end.result(1.0)


@given(lives())
def test_replay_without_a_window_gives_the_same_conversation(life: Life) -> None:
    told = Conversation(replace(life.rules, compaction=None), JOB)
    told.replay(life.facts)
    assert told.result(1.0) == life.end.result(1.0)


@pytest.mark.slow
@given(lives())
def test_reasoning_calls_and_results_stay_together_and_only_contents_change(life: Life) -> None:
    for before, after, _ in compactions(life):
        assert len(messages(before)) == len(messages(after))
        for one, other in zip(messages(before), messages(after), strict=True):
            if isinstance(one, ToolResults):
                assert isinstance(other, ToolResults)
                blank = [tuple(replace(result, content="") for result in each.results) for each in (one, other)]
                assert blank[0] == blank[1]
            else:
                assert one == other
        for said, heard in pairwise(messages(after)):
            if isinstance(said, Assistant) and said.calls:
                assert isinstance(heard, ToolResults)
                assert [call.id for call in said.calls] == [result.call.id for result in heard.results]


@given(lives())
def test_compaction_shrinks_results_and_keeps_errors(life: Life) -> None:
    for before, after, step in compactions(life):
        for one, other in zip(results(before), results(after), strict=True):
            assert one.content == other.content or (len(other.content) < len(one.content) and not one.is_error)
        assert chars_in(messages(after)) < chars_in(messages(before))
        assert size(after).tokens < size(before).tokens
        assert step.tokens == round(size(before).tokens)


@given(lives())
def test_unread_results_stay_whole_unless_they_alone_exceed_the_window(life: Life) -> None:
    assert life.rules.compaction is not None
    for before, after, _ in compactions(life):
        newest = [message for message in after._messages if isinstance(message, ToolResults)][-1]
        was = [message for message in before._messages if isinstance(message, ToolResults)][-1]
        if newest == was:
            continue
        old = results(after)[: -len(newest.results)]
        assert all(result.is_error or len(result.content) <= 200 for result in old)
        cut = [result for result, one in zip(newest.results, was.results, strict=True) if result != one]
        assert all("[cut here: " in result.content for result in cut)
        assert max(len(result.content) for result in was.results) in [
            len(one.content) for result, one in zip(newest.results, was.results, strict=True) if result in cut
        ] or any(result.is_error for result in was.results)


@given(lives())
def test_after_compaction_the_request_fits_or_nothing_can_be_shortened(life: Life) -> None:
    made = life.rules.compaction
    assert made is not None
    for _, after, step in compactions(life):
        fact = step.done({})
        if size(after).tokens > made.trigger_tokens:
            assert all(result.is_error or len(result.content) <= 200 for result in results(after))
        assert after._compaction_state is not None
        after._compaction_state._is_done = False
        assert not isinstance(after.next(), CompactContext)
        assert fact.after <= step.tokens


@given(lives())
def test_there_is_at_most_one_compaction_per_turn_and_none_without_tool_results(life: Life) -> None:
    for step, following in pairwise([*life.steps, life.end.next()]):
        assert not (isinstance(step, CompactContext) and isinstance(following, CompactContext))
    count = sum(isinstance(step, CompactContext) for step in life.steps)
    assert life.end.result(0.0).compactions == count
    assert count <= sum(isinstance(fact, Returned) for fact in life.facts) + life.rules.max_retries


@given(lives())
def test_the_context_size_is_the_last_count_plus_later_additions(life: Life) -> None:
    talk = Conversation(life.rules, JOB)
    for fact in life.facts:
        talk.apply(fact)
        step = talk.next()
        has_failed = isinstance(step, Done) and step.error is not None
        if not isinstance(step, Done):
            assert size(talk)._chars == PROMPT + chars_in(messages(talk))
        if isinstance(fact, Replied) and fact.reply.usage.input and not talk._reask and not has_failed:
            assert size(talk).tokens == fact.reply.usage.input + fact.reply.usage.output


@given(lives("action"))
def test_in_action_mode_remaining_results_are_sent_as_user_text(life: Life) -> None:
    for _, after, _ in compactions(life):
        step = after.next()
        assert isinstance(step, Generate)
        assert not any(isinstance(message, ToolResults) for message in step.request.messages)
        told = [message.text for message in step.request.messages if isinstance(message, User)]
        for result in results(after):
            assert f"{'Error' if result.is_error else 'Result'} of look: {result.content}" in told


HELD = st.lists(
    st.builds(
        lambda tool, length, stays, summary, change: ToolOutputSize(
            0, tool, "x" * length, length, stays, is_summary=summary, made_a_change=change
        ),
        st.sampled_from(["look", "a_tool_with_a_long_name"]),
        st.integers(0, 5_000),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@given(HELD, st.integers(0, 3), st.integers(1, 3_000), st.booleans(), st.integers(0, 20_000))
def test_a_compaction_plan_shortens_no_more_old_results_than_needed(
    held: list[ToolOutputSize], newest: int, most: int, summarizes: bool, other: int
) -> None:
    placed = [replace(each, index=place, is_newest=place >= len(held) - newest) for place, each in enumerate(held)]
    size = ContextSize(other + sum(len(each.content) for each in placed))
    plan = plan_compaction(compaction(summarizes, most), placed, size)
    if plan is None:
        return
    assert size.tokens > most
    assert [each.output.index for each in plan.results] == sorted({each.output.index for each in plan.results})
    assert all(each.gain > 0 and not each.output.stays for each in plan.results)
    enough = (size.tokens - most // 2) * size.chars_per_token
    gains = [each.gain for each in plan.results]
    if not any(each.output.is_newest for each in plan.results):
        assert sum(gains) - max(gains) < enough, "the last that was chosen was needed"
    assert plan.done({}) == plan.done({}) == replace(plan.done({}), before=plan.tokens)


def test_a_compaction_fact_of_an_earlier_version_needs_no_token_counts() -> None:
    fact = decode("compacted", b'{"results": [{"index": 1, "content": "x"}]}')
    assert fact == Compacted((Shortened(1, "x"),))
