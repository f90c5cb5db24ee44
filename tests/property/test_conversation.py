"""Whatever models and tools do: lives end, prefixes stay, and a replayed life is the life that was lived."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.conversations import LAST, TURN, City, rules

from batch_agent.agent.compaction import CompactContext
from batch_agent.agent.conversation import CallTools, Conversation, Done, Generate
from batch_agent.core.agent_config import AgentConfig, Job
from batch_agent.core.facts import Fact, Replied, Returned
from batch_agent.core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import FinishReason, Reply, Request, Usage

TEXTS = st.sampled_from(
    [
        "",
        "plain text",
        '{"name": "Roma"}',
        '```json\n{"name": "Roma",}\n```',
        '{"nome": "Roma"}',
        '{"name": "Ro',
        '{"tool": "look", "arguments": {"at": 1}}',
        '{"tool": "look"}',
        '{"final": {"name": "Roma"}}',
        '{"final": "text"}',
        '{"final": ""}',
        "[1, 2]",
        "<think>never mind",
        "<think>a</think>b",
    ]
) | st.text(max_size=10)
ARGUMENTS = st.sampled_from(["", " ", "{}", '{"at": 1}', '{"at": ', "[1]", "nonsense"]) | st.text(max_size=5)
CALLS = st.lists(
    st.builds(ToolCall, st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["look", "nothing", ""]), ARGUMENTS),
    max_size=3,
)
FINISHES: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "stop", "calls", "calls", "length", "refusal"])
COUNTS = st.integers(0, 99)
THOUGHTS = st.lists(st.builds(Thought, st.text(max_size=3)), max_size=1).map(tuple)
REPLIES = st.builds(
    Replied,
    st.builds(Reply, TEXTS, FINISHES, st.builds(Usage, COUNTS, COUNTS, COUNTS), CALLS.map(tuple), THOUGHTS),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 1.0]),
    st.none() | st.just(0.25),
)
RULES = st.builds(
    rules,
    output=st.sampled_from([None, City, list[int], {"type": "object", "required": ["name"]}]),
    mode=st.sampled_from(["native", "action"]),
    turns=st.integers(1, 4),
    retries=st.integers(0, 3),
    max_tokens=st.sampled_from([None, 5]),
)
JOB = Job(0, "key", "input", "Do it.")


@dataclass(frozen=True)
class Life:
    """A conversation to its end, with what it asked for on the way."""

    rules: AgentConfig
    talk: Conversation
    facts: list[Fact]
    steps: list[Generate | CallTools]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    made = draw(RULES)
    talk = Conversation(made, JOB)
    facts: list[Fact] = []
    steps: list[Generate | CallTools] = []
    while not isinstance(step := talk.next(), Done):
        assert len(facts) < 100
        assert not isinstance(step, CompactContext)
        fact = draw(REPLIES) if isinstance(step, Generate) else _returned(draw, step)
        talk.apply(fact)
        facts.append(fact)
        steps.append(step)
    return Life(made, talk, facts, steps)


def _returned(draw: st.DrawFn, step: CallTools) -> Returned:
    outcomes = st.builds(lambda content, is_error: (content, is_error), st.text(max_size=5), st.booleans())
    return Returned(tuple(ToolResult(call, *draw(outcomes)) for call in step.calls))


def requests(life: Life) -> list[Request]:
    return [step.request for step in life.steps if isinstance(step, Generate)]


@pytest.mark.slow
@given(lives())
def test_a_replayed_conversation_equals_the_live_one(life: Life) -> None:
    for lived in range(len(life.facts) + 1):
        again = Conversation(life.rules, JOB)
        again.replay(life.facts[:lived])
        assert again.next() == (life.steps[lived] if lived < len(life.steps) else life.talk.next())
        if lived < len(life.steps):
            for fact in life.facts[lived:]:
                again.apply(fact)
        assert again.next() == life.talk.next()
        assert again.result(1.0) == life.talk.result(1.0)


@given(lives())
def test_reading_the_next_step_does_not_change_the_conversation(life: Life) -> None:
    twice = Conversation(life.rules, JOB)
    for fact, step in zip(life.facts, life.steps, strict=True):
        assert twice.next() == twice.next() == step
        twice.apply(fact)
    assert twice.next() == twice.next() == life.talk.next()


@given(lives())
def test_every_conversation_ends_within_its_turns_and_retries(life: Life) -> None:
    replies = [fact for fact in life.facts if isinstance(fact, Replied)]
    assert len(replies) <= life.rules.max_turns + life.rules.max_retries
    result = life.talk.result(0.0)
    assert result.turns == len(replies)
    assert sum(step.turns_left > 0 for step in life.steps if isinstance(step, Generate)) == len(replies)


@given(lives())
def test_a_request_begins_with_the_request_before_it_except_for_repeated_answers(life: Life) -> None:
    previous: tuple[Message, ...] = ()
    was_asking_again = False
    for place, step in enumerate(life.steps):
        if not isinstance(step, Generate):
            continue
        messages = step.request.messages
        asks_again = place > 0 and isinstance(life.facts[place - 1], Replied)
        if asks_again and was_asking_again:
            assert len(messages) == len(previous)
            assert messages[:-2] == previous[:-2]
        else:
            assert messages[: len(previous)] == previous
            assert len(messages) - len(previous) == (2 if previous else 1)
        assert isinstance(messages[-1], User | ToolResults)
        previous, was_asking_again = messages, asks_again


@given(lives())
def test_all_requests_share_their_prompt_and_only_the_last_turn_forbids_tools(life: Life) -> None:
    for step in life.steps:
        if isinstance(step, Generate):
            request, is_last = step.request, step.turns_left == 1
            assert request.prompt is life.rules.prompt
            assert request.sampling is life.rules.sampling
            assert request.may_call_tools is not is_last
            assert request.answer_schema is (LAST if is_last else TURN)
    left = [step.turns_left for step in life.steps if isinstance(step, Generate)]
    assert left[0] == life.rules.max_turns
    assert all(now - after in (0, 1) for now, after in pairwise(left))


@given(lives())
def test_call_ids_are_unique_and_the_history_is_valid_for_every_server(life: Life) -> None:
    for step in life.steps:
        if isinstance(step, CallTools):
            ids = [call.id for call in step.calls]
            assert all(ids)
            assert len(set(ids)) == len(ids) > 0
    for request in requests(life):
        for said, heard in pairwise(request.messages):
            if isinstance(said, Assistant) and said.calls:
                assert isinstance(heard, ToolResults)
                assert [call.id for call in said.calls] == [result.call.id for result in heard.results]
                assert all(isinstance(json.loads(call.arguments), dict) for call in said.calls)
            if isinstance(heard, ToolResults):
                assert isinstance(said, Assistant)


@given(lives())
def test_a_success_has_an_answer_and_a_failure_has_a_reason(life: Life) -> None:
    result = life.talk.result(0.0)
    last = life.facts[-1]
    assert isinstance(last, Replied)
    assert result.ok == (result.error is None)
    if not result.ok:
        assert result.output is None
        return
    assert result.output is not None
    assert last.reply.finish != "refusal"
    assert not (life.rules.tool_mode == "native" and last.reply.calls)
    if life.rules.output is not None:
        assert life.rules.output.validate(orjson.loads(orjson.dumps(result.output, default=_data))) == result.output
    elif last.reply.finish == "length" and life.rules.tool_mode == "native":
        assert life.rules.sampling.max_tokens is not None


def _data(value: Any) -> Any:
    return value.model_dump()


@given(lives())
def test_usage_is_the_sum_of_the_turns_and_the_transcript_has_all_messages(life: Life) -> None:
    replies = [fact for fact in life.facts if isinstance(fact, Replied)]
    results = [result for fact in life.facts if isinstance(fact, Returned) for result in fact.results]
    end = life.talk.result(2.0)
    assert end.usage == sum((fact.reply.usage for fact in replies), Usage())
    assert end.timing.queued == sum(fact.queued for fact in replies)
    assert end.timing.ttft == tuple(fact.ttft for fact in replies)
    assert [record.ok for record in end.tool_calls] == [not result.is_error for result in results]
    asked = requests(life)[-1].messages
    assert end.transcript[:-1] == asked
    assert isinstance(end.transcript[-1], Assistant)
    assert end.transcript[-1].text == end.text == replies[-1].reply.text
