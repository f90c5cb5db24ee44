"""What each server is sent beside the common fields. Nothing is inherited: a field of one is an error on the next."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.flavors import (
    BY_OWNER,
    BY_SCHEME,
    COMPATIBLE,
    DYNAMO,
    GROQ,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    SGLANG,
    TOGETHER,
    VLLM,
    Flavor,
)
from batch_agent.core.messages import Assistant, Prompt, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.requests import Request, Sampling

CALL = ToolCall("c", "look", "{}")
STORY = (User("Hi"), Assistant("", (CALL,), (Thought("Hm, "), Thought("well."))), ToolResults((ToolResult(CALL, "x"),)))
ASKED = Request(
    Prompt("Be brief.", cache_salt="mine"),
    (User("Hi"),),
    "m",
    Sampling(max_tokens=9),
    agent="ab12",
    turn=2,
    priority=102,
)
COMMON = {"model", "messages", "max_tokens", "max_completion_tokens"}


def sent(flavor: Flavor, request: Request = ASKED) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(OpenAIChat(flavor.extensions).encode(request))
    return body


def beside(flavor: Flavor, request: Request = ASKED) -> dict[str, Any]:
    return {name: value for name, value in sent(flavor, request).items() if name not in COMMON}


def test_lower_vllm_priorities_are_served_first() -> None:
    body = beside(VLLM)
    assert body.pop("request_id").startswith("ab12-2-")
    assert body == {"priority": -102, "cache_salt": "mine"}


def test_a_repeated_request_has_a_new_request_id() -> None:
    dialect = OpenAIChat(VLLM.extensions)
    assert len({orjson.loads(dialect.encode(ASKED))["request_id"] for _ in range(3)}) == 3


def test_higher_sglang_priorities_are_served_first_and_sessions_are_kept() -> None:
    assert beside(SGLANG) == {"priority": 102, "cache_salt": "mine", "session_id": "ab12"}


def test_sglang_gets_a_priority_of_0_because_a_missing_one_is_the_lowest() -> None:
    assert beside(SGLANG, replace(ASKED, priority=0))["priority"] == 0
    assert "priority" not in beside(VLLM, replace(ASKED, priority=0))


def test_turns_have_one_priority_where_a_cache_evicts_by_it() -> None:
    """SGLang keeps the highest priority that a context was ever sent with: agents that ended would outlive others."""
    flavor = replace(SGLANG, extensions=replace(SGLANG.extensions, evicts_by_priority=True))
    turns = [replace(ASKED, priority=100 + turn, turn=turn) for turn in range(10)]
    assert {beside(flavor, turn)["priority"] for turn in turns} == {101}
    assert beside(flavor, replace(ASKED, priority=-200))["priority"] == -199


@pytest.mark.parametrize(("flavor", "is_sent"), [(VLLM, True), (SGLANG, False), (DYNAMO, False), (OPENAI, True)])
def test_the_tools_stay_in_the_prompt_of_a_last_turn(flavor: Flavor, is_sent: bool) -> None:
    prompt = Prompt("Be brief.", (ToolSpec("look", "", {}),))
    last = replace(ASKED, prompt=prompt, may_call_tools=False, answer_schema={"type": "object"})
    assert ("tool_choice" in sent(flavor, last)) is is_sent
    assert sent(flavor, replace(last, answer_schema=None))["tool_choice"] == "none"


def test_dynamo_gets_hints_in_nvext_and_the_session_in_a_header() -> None:
    assert beside(DYNAMO) == {"cache_salt": "mine", "nvext": {"agent_hints": {"priority": 102, "osl": 9}}}
    assert OpenAIChat(DYNAMO.extensions).headers(ASKED) == {"x-dynamo-session-id": "ab12"}


def test_nvext_fields_of_the_user_override_generated_hints() -> None:
    given = {"nvext": {"annotations": ["a"], "agent_hints": {"osl": 3}}}
    body = sent(DYNAMO, replace(ASKED, sampling=Sampling(max_tokens=9, extra=given)))
    assert body["nvext"] == {"annotations": ["a"], "agent_hints": {"priority": 102, "osl": 3}}


def test_dynamo_gets_the_users_fields_if_there_are_no_hints() -> None:
    quiet = replace(ASKED, priority=0, sampling=Sampling(extra={"nvext": {"annotations": ["a"]}}))
    assert sent(DYNAMO, quiet)["nvext"] == {"annotations": ["a"]}
    assert "nvext" not in sent(DYNAMO, replace(quiet, sampling=Sampling()))


def test_openai_gets_a_cache_key_for_requests_that_share_a_prefix() -> None:
    tools = (ToolSpec("look", "", {}),)
    keys = [
        sent(OPENAI, replace(ASKED, prompt=prompt))["prompt_cache_key"]
        for prompt in (Prompt("A"), Prompt("A"), Prompt("B"), Prompt("A", tools))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert set(beside(OPENAI)) == {"prompt_cache_key"}


def test_an_unknown_server_gets_only_standard_fields() -> None:
    assert beside(COMPATIBLE) == {}
    assert OpenAIChat(COMPATIBLE.extensions).headers(ASKED) is None


def test_a_request_without_agent_and_priority_has_neither_field() -> None:
    plain = Request(Prompt("Be brief."), (User("Hi"),), "m", Sampling())
    for flavor in {*BY_SCHEME.values(), *BY_OWNER.values()}:
        assert set(beside(flavor, plain)) <= {"prompt_cache_key"}, flavor.name
        assert OpenAIChat(flavor.extensions).headers(plain) is None


@pytest.mark.parametrize(
    ("flavor", "field"),
    [
        (VLLM, "reasoning"),
        (SGLANG, "reasoning_content"),
        (DYNAMO, "reasoning_content"),
        (OLLAMA, "reasoning"),
        (GROQ, "reasoning"),
        (TOGETHER, "reasoning"),
        (OPENROUTER, "reasoning"),
        (OPENAI, ""),
    ],
)
def test_reasoning_is_sent_back_to_servers_that_accept_it(flavor: Flavor, field: str) -> None:
    message = sent(flavor, replace(ASKED, messages=STORY))["messages"][2]
    expected = {field: "Hm, well."} if field else {}
    assert {name: value for name, value in message.items() if "reasoning" in name} == expected


def test_openai_enforces_a_schema_in_its_strict_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    asked = sent(OPENAI, replace(ASKED, answer_schema=schema))["response_format"]["json_schema"]
    assert asked["strict"] is True
    assert asked["schema"] == {**schema, "required": ["a"], "additionalProperties": False}
    assert sent(VLLM, replace(ASKED, answer_schema=schema))["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize("flavor", [VLLM, SGLANG, DYNAMO, OPENAI, COMPATIBLE], ids=lambda flavor: flavor.name)
def test_turn_n_is_a_prefix_of_turn_n_plus_1_for_all_flavors(flavor: Flavor) -> None:
    dialect = OpenAIChat(flavor.extensions)
    turns = [replace(ASKED, messages=STORY[: 2 * turn + 1], turn=turn, priority=turn) for turn in range(2)]
    first, second = (dialect.encode(request) for request in turns)
    assert second.startswith(first[: first.rindex(b"}]") + 1])


@pytest.mark.parametrize("scheme", ["lmstudio", "llamacpp"])
def test_servers_whose_tool_choice_is_a_string_are_asked_for_a_call_of_any_tool(scheme: str) -> None:
    asked = replace(ASKED, prompt=Prompt("Be brief.", (ToolSpec("look", "", {}),)), must_call="look")
    assert sent(BY_SCHEME[scheme], asked)["tool_choice"] == "required"
