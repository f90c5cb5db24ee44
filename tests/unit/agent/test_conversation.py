"""One agent's life: what is asked, what is remembered, and how it ends."""

import json
from typing import Any

import pytest
from tests.support.conversations import LAST, TURN, City, asked, call, done, give, rules, say, talk

from batch_agent.agent.conversation import CallTools, Conversation, Done, Generate
from batch_agent.core.agent_config import Job
from batch_agent.core.errors import ErrorKind
from batch_agent.core.facts import Replied
from batch_agent.core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import Reply, Usage
from batch_agent.core.results import AgentError, CallRecord, Timing

ROMA = '{"name": "Roma"}'
TASK = User("Do it.")


def calls_of(agent: Conversation) -> tuple[ToolCall, ...]:
    step = agent.next()
    assert isinstance(step, CallTools)
    return step.calls


def test_the_first_request_has_the_system_prompt_and_the_task() -> None:
    made = rules()
    agent = Conversation(made, Job(0, "key", "x", "Do it."))
    request = asked(agent)
    assert request.messages == (TASK,)
    assert request.prompt is made.prompt
    assert request.sampling is made.sampling
    assert (request.model, request.stream) == ("m", False)
    assert request.answer_schema is TURN
    assert request.may_call_tools


def test_an_answer_ends_the_agent() -> None:
    agent = talk(City)
    agent.apply(say(f"Sure: {ROMA}"))
    result = done(agent)
    assert result.ok
    assert result.output == City(name="Roma")
    assert result.text == f"Sure: {ROMA}"
    assert (result.index, result.key, result.input) == (3, "key", {"it": 1})
    assert (result.turns, result.finish) == (1, "stop")
    assert result.transcript == (TASK, Assistant(f"Sure: {ROMA}"))


def test_plain_text_is_the_answer_without_its_reasoning() -> None:
    agent = talk()
    agent.apply(say("<think>hm</think> Roma.", thoughts=(Thought("more"),)))
    assert done(agent).output == "Roma."
    assert done(agent).transcript[-1] == Assistant("<think>hm</think> Roma.", (), (Thought("more"),))


def test_a_tool_is_called_and_its_result_is_read() -> None:
    agent = talk(City)
    agent.apply(call('{"at": 1}', text="I look.", id="c7"))
    wanted = ToolCall("c7", "look", '{"at": 1}')
    assert calls_of(agent) == (wanted,)
    returned = give(agent.next(), "a cat")
    agent.apply(returned)
    assert asked(agent).messages == (TASK, Assistant("I look.", (wanted,)), ToolResults(returned.results))
    agent.apply(say(ROMA))
    result = done(agent)
    assert result.output == City(name="Roma")
    assert result.tool_calls == (CallRecord("look", '{"at": 1}', True, 0.5),)
    assert result.turns == 2


def test_in_action_mode_a_tool_is_called_and_its_result_is_read() -> None:
    agent = talk(City, mode="action")
    text = '{"tool": "look", "arguments": {"at": 1}}'
    agent.apply(say(text))
    assert calls_of(agent) == (ToolCall("call_1", "look", '{"at":1}'),)
    agent.apply(give(agent.next(), "no", is_error=True))
    assert asked(agent).messages == (TASK, Assistant(text), User("Error of look: no"))
    agent.apply(say(f'{{"final": {ROMA}}}'))
    result = done(agent)
    assert result.output == City(name="Roma")
    assert result.tool_calls == (CallRecord("look", '{"at":1}', False, 0.5),)


@pytest.mark.parametrize(
    ("output", "final", "answer"),
    [
        (None, '"Roma"', "Roma"),
        (None, '{"a": "é"}', '{"a":"é"}'),
        (None, "5", "5"),
        (City, json.dumps(ROMA), City(name="Roma")),
        (City, f'{{"answer": {ROMA}}}', City(name="Roma")),
        (list[int], "[1]", [1]),
    ],
)
def test_in_action_mode_the_final_answer_may_be_anything(output: Any, final: str, answer: Any) -> None:
    agent = talk(output, mode="action")
    agent.apply(say(f'{{"final": {final}}}'))
    assert done(agent).output == answer


def test_calls_of_one_turn_are_executed_and_returned_together() -> None:
    agent = talk()
    wanted = (ToolCall("a", "look", "{}"), ToolCall("b", "find", "{}"))
    agent.apply(say("", "calls", *wanted))
    assert calls_of(agent) == wanted
    agent.apply(give(agent.next()))
    assert asked(agent).messages[1] == Assistant("", wanted)
    assert [record.name for record in done_after(agent).tool_calls] == ["look", "find"]


def done_after(agent: Conversation, text: str = "done") -> Any:
    agent.apply(say(text))
    return done(agent)


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("x", "")])
def test_calls_without_ids_get_generated_ids(ids: tuple[str, str]) -> None:
    agent = talk()
    agent.apply(say("", "calls", *(ToolCall(own, "look", "{}") for own in ids)))
    assert [wanted.id for wanted in calls_of(agent)] == ["call_1_0", "call_1_1"]
    agent.apply(give(agent.next()))
    assistant, results = asked(agent).messages[1:]
    assert isinstance(assistant, Assistant)
    assert isinstance(results, ToolResults)
    assert [own.id for own in assistant.calls] == [result.call.id for result in results.results]


def test_ids_that_the_server_gave_are_kept() -> None:
    agent = talk()
    agent.apply(say("", "calls", ToolCall("x", "look", "{}"), ToolCall("y", "look", "{}")))
    assert [wanted.id for wanted in calls_of(agent)] == ["x", "y"]


@pytest.mark.parametrize("arguments", ["", "  \n"])
def test_empty_arguments_are_an_empty_object(arguments: str) -> None:
    agent = talk()
    agent.apply(call(arguments))
    assert calls_of(agent)[0].arguments == "{}"


def test_arguments_are_kept_byte_for_byte() -> None:
    agent = talk()
    agent.apply(call(' {"b":1,  "a" : 2}\n'))
    assert calls_of(agent)[0].arguments == ' {"b":1,  "a" : 2}\n'
    agent.apply(give(agent.next()))
    assert asked(agent).messages[1] == Assistant("", calls=(ToolCall("c1", "look", ' {"b":1,  "a" : 2}\n'),))


@pytest.mark.parametrize("arguments", ['{"a": ', "nonsense", "[1]", "5", "null", '"{}"', "{'a': 1}"])
def test_malformed_arguments_are_passed_unchanged_and_shown_as_data(arguments: str) -> None:
    agent = talk()
    agent.apply(call(arguments))
    assert calls_of(agent)[0].arguments == arguments
    agent.apply(give(agent.next(), "not valid JSON", is_error=True))
    shown = asked(agent).messages[1]
    assert isinstance(shown, Assistant)
    assert json.loads(shown.calls[0].arguments) == {"malformed": arguments}
    assert shown.calls[0].id == "c1"


def test_truncated_arguments_are_not_taken_for_an_empty_object() -> None:
    agent = talk()
    agent.apply(say("", "length", ToolCall("c1", "look", "")))
    assert calls_of(agent)[0].arguments == ""


def test_an_invalid_answer_is_requested_again_with_the_problem() -> None:
    agent = talk(City)
    agent.apply(say('{"nome": "Roma"}'))
    task, said, question = asked(agent).messages
    assert (task, said) == (TASK, Assistant('{"nome": "Roma"}'))
    assert isinstance(question, User)
    assert "name: Field required" in question.text
    agent.apply(say(ROMA))
    result = done(agent)
    assert result.output == City(name="Roma")
    assert result.turns == 2
    assert result.transcript == (task, said, question, Assistant(ROMA))


def test_repeated_answers_are_bounded_and_do_not_grow_the_context() -> None:
    agent = talk(City, retries=3)
    sizes = []
    for attempt in range(4):
        request = asked(agent)
        sizes.append(len(request.messages))
        if attempt:
            assert request.messages[1] == Assistant(f"wrong {attempt - 1}")
        agent.apply(say(f"wrong {attempt}"))
    assert sizes == [1, 3, 3, 3]
    result = done(agent)
    assert result.error is not None
    assert result.error.kind is ErrorKind.INVALID_OUTPUT
    assert result.error.retryable
    assert "after 4 tries" in result.error.message
    assert result.output is None
    assert result.turns == 4


def test_without_retries_an_invalid_first_answer_is_a_failure() -> None:
    agent = talk(City, retries=0)
    agent.apply(say("wrong"))
    error = done(agent).error
    assert error is not None
    assert error.kind is ErrorKind.INVALID_OUTPUT
    assert "tries" not in error.message


def test_answer_retries_are_counted_over_the_whole_conversation() -> None:
    agent = talk(City, retries=1, turns=5)
    agent.apply(say("wrong"))
    agent.apply(call())
    agent.apply(give(agent.next()))
    agent.apply(say("wrong again"))
    assert done(agent).error is not None


def test_requesting_an_answer_again_takes_no_turn() -> None:
    agent = talk(City, turns=2, retries=2)
    for _ in range(2):
        agent.apply(say("wrong"))
        assert asked(agent).may_call_tools
    agent.apply(call())
    agent.apply(give(agent.next()))
    assert not asked(agent).may_call_tools
    agent.apply(say(ROMA))
    assert done(agent).ok


def test_a_call_after_a_repeated_answer_keeps_the_prefix() -> None:
    agent = talk(City)
    agent.apply(say("wrong"))
    before = asked(agent).messages
    agent.apply(call())
    agent.apply(give(agent.next()))
    after = asked(agent).messages
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2
    agent.apply(say("wrong"))
    assert asked(agent).messages[: len(after)] == after


@pytest.mark.parametrize("mode", ["native", "action"])
def test_an_empty_answer_is_requested_again_and_shown_as_empty(mode: Any) -> None:
    agent = talk(mode=mode)
    agent.apply(say("", "calls"))
    assert asked(agent).messages[1] == Assistant("(empty)")


def test_an_empty_final_action_is_requested_again() -> None:
    agent = talk(mode="action")
    agent.apply(say('{"final": " "}'))
    question = asked(agent).messages[-1]
    assert isinstance(question, User)
    assert "it is empty" in question.text


def test_on_the_last_turn_the_tools_stay_in_the_prompt_and_may_not_be_called() -> None:
    agent = talk(City, turns=2)
    first = agent.next()
    agent.apply(call())
    agent.apply(give(agent.next()))
    last = agent.next()
    assert isinstance(first, Generate)
    assert isinstance(last, Generate)
    assert (first.turns_left, last.turns_left) == (2, 1)
    assert (first.request.may_call_tools, last.request.may_call_tools) == (True, False)
    assert (first.request.answer_schema, last.request.answer_schema) == (TURN, LAST)
    assert last.request.prompt is first.request.prompt
    assert last.request.prompt.tools
    agent.apply(say("wrong"))
    assert not asked(agent).may_call_tools
    assert asked(agent).answer_schema is LAST


@pytest.mark.parametrize(
    ("mode", "wish"), [("native", call(text="still")), ("action", say('{"tool": "look", "arguments": {}}'))]
)
@pytest.mark.parametrize("turns", [1, 3])
def test_exceeding_max_turns_is_a_failure(mode: Any, wish: Replied, turns: int) -> None:
    agent = talk(mode=mode, turns=turns)
    for _ in range(turns - 1):
        agent.apply(wish)
        agent.apply(give(agent.next()))
    agent.apply(wish)
    result = done(agent)
    assert not result.ok
    assert result.output is None
    assert result.error is not None
    assert result.error.kind is ErrorKind.MAX_TURNS
    assert f"in {turns} turns" in result.error.message
    assert not result.error.retryable
    assert len(result.tool_calls) == turns - 1
    assert result.transcript[-1] == Assistant(wish.reply.text)


def test_a_model_refusal_ends_the_agent_and_is_not_repeated() -> None:
    agent = talk(City)
    agent.apply(say("I cannot help with that.", "refusal"))
    result = done(agent)
    assert result.error == AgentError(ErrorKind.REFUSED, "The model declined: I cannot help with that.")
    assert result.finish == "refusal"


def test_a_refusal_without_text_says_that_a_filter_may_be_the_cause() -> None:
    agent = talk(City)
    agent.apply(say("", "refusal"))
    error = done(agent).error
    assert error == AgentError(
        ErrorKind.REFUSED, "The model, or a filter behind it, declined to answer, and said nothing more."
    )


def test_a_model_refusal_is_a_failure_even_if_the_text_fits_the_schema() -> None:
    agent = talk(City)
    agent.apply(say(ROMA, "refusal"))
    assert not done(agent).ok


def test_a_text_truncated_at_the_users_max_tokens_is_the_answer() -> None:
    agent = talk(max_tokens=5)
    agent.apply(say("Once upon a", "length"))
    result = done(agent)
    assert result.output == "Once upon a"
    assert result.ok
    assert result.finish == "length"


def test_a_text_truncated_at_the_servers_limit_is_requested_again() -> None:
    agent = talk(retries=1)
    agent.apply(say("Once upon a", "length"))
    question = asked(agent).messages[-1]
    assert isinstance(question, User)
    assert "be shorter" in question.text
    agent.apply(say("Once upon", "length"))
    error = done(agent).error
    assert error is not None
    assert error.kind is ErrorKind.TRUNCATED
    assert error.retryable
    assert "Raise max_tokens" in error.message


@pytest.mark.parametrize("max_tokens", [None, 5])
def test_a_structured_answer_that_was_cut_off_is_never_the_answer(max_tokens: int | None) -> None:
    for mode, text in (("native", '{"name": "Ro'), ("native", '{"name": "Ro"'), ("action", '{"final": {"name": "Ro"}')):
        agent = talk(City, mode=mode, max_tokens=max_tokens, retries=0)
        agent.apply(say(text, "length"))
        error = done(agent).error
        assert error is not None
        assert error.kind is ErrorKind.TRUNCATED


def test_a_complete_structured_answer_counts_although_later_text_was_truncated() -> None:
    agent = talk(City)
    agent.apply(say(f"{ROMA}\nI chose it bec", "length"))
    assert done(agent).output == City(name="Roma")


def test_truncated_reasoning_is_not_the_answer() -> None:
    agent = talk(max_tokens=5, retries=0)
    agent.apply(say("<think>Let me see", "length"))
    error = done(agent).error
    assert error is not None
    assert error.kind is ErrorKind.TRUNCATED


def test_a_job_with_a_bad_input_is_done_before_it_starts() -> None:
    problem = AgentError(ErrorKind.BAD_INPUT, "Input 3: no")
    agent = Conversation(rules(), Job(3, "key", "x", "", problem))
    result = done(agent)
    assert (result.error, result.turns, result.usage) == (problem, 0, Usage())
    assert result.finish is None


def test_a_conversation_can_be_ended_with_an_error() -> None:
    agent = talk()
    agent.apply(call())
    gone = AgentError(ErrorKind.AGENT_TIMEOUT, "too long", retryable=True)
    agent.fail(gone)
    assert agent.next() == Done(error=gone)
    assert done(agent).error == gone
    assert done(agent).turns == 1


def test_the_usage_of_all_turns_is_added_up() -> None:
    agent = talk()
    agent.apply(Replied(Reply("", "calls", Usage(10, 1, 3), (ToolCall("a", "look", "{}"),)), 0.5, 9.0, 0.25))
    agent.apply(give(agent.next()))
    agent.apply(Replied(Reply("done", "stop", Usage(20, 9, 4)), 1.5, 9.0, None))
    result = agent.result(12.0)
    assert result.usage == Usage(30, 10, 7)
    assert result.timing == Timing(2.0, (0.25, None), 12.0)


def test_the_transcript_has_all_messages() -> None:
    agent = talk(City)
    facts = [say("wrong"), call(text="look", id="c1"), say(ROMA)]
    agent.apply(facts[0])
    question = asked(agent).messages[-1]
    agent.apply(facts[1])
    wanted = ToolCall("c1", "look", "{}")
    agent.apply(give(agent.next()))
    assert agent.result(0).transcript == asked(agent).messages
    agent.apply(facts[2])
    expected: tuple[Message, ...] = (
        TASK,
        Assistant("wrong"),
        question,
        Assistant("look", (wanted,)),
        ToolResults((ToolResult(wanted, "seen", False, 0.5),)),
        Assistant(ROMA),
    )
    assert done(agent).transcript == expected


def test_reasoning_is_kept_with_its_turn() -> None:
    agent = talk()
    agent.apply(say("", "calls", ToolCall("a", "look", "{}"), thoughts=(Thought("I should look"),)))
    agent.apply(give(agent.next()))
    assert asked(agent).messages[1] == Assistant("", (ToolCall("a", "look", "{}"),), (Thought("I should look"),))
