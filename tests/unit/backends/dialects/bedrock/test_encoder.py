"""Requests to Bedrock's Converse API."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse, cache_support, supports_schema
from batch_agent.core.messages import (
    Assistant,
    Message,
    Prompt,
    Thought,
    ToolCall,
    ToolResult,
    ToolResults,
    ToolSpec,
    User,
)
from batch_agent.core.requests import Request, Sampling

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"
OTHER = "meta.llama3-3-70b-instruct-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/eu.anthropic.claude-3-7-sonnet-20250219-v1:0"
LOOK = ToolSpec("look", "Look it up", {"properties": {"key": {"type": "string"}}})
POINT = {"cachePoint": {"type": "default"}}
CALL = ToolCall("tooluse_1", "look", '{"key": 1.0}')
HI = User("Hi")


def ask(
    *messages: Message, model: str = OTHER, system: str = "", tools: bool = False, sampling: Sampling | None = None
) -> Request:
    prompt = Prompt(system, (LOOK,) if tools else ())
    return Request(prompt, messages or (HI,), model, sampling or Sampling())


def body(request: Request) -> dict[str, Any]:
    encoded: dict[str, Any] = orjson.loads(BedrockConverse().encode(request))
    return encoded


def test_a_plain_question_is_one_message() -> None:
    assert body(ask()) == {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}


def test_the_path_holds_the_encoded_model() -> None:
    dialect = BedrockConverse()
    assert dialect.path(ask(model=NOVA)) == "/model/amazon.nova-pro-v1%3A0/converse"
    streamed = replace(ask(model="arn:aws:bedrock:eu-west-1::foundation-model/a.b"), stream=True)
    assert (
        dialect.path(streamed) == "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A%3Afoundation-model%2Fa.b/converse-stream"
    )
    assert dialect.headers(streamed) is None


def test_sampling_is_merged_into_the_users_inference_config() -> None:
    extra = {"inferenceConfig": {"topP": 0.5}, "performanceConfig": {"latency": "optimized"}}
    sampling = Sampling(temperature=0.0, top_p=0.9, max_tokens=5, stop=("x",), seed=3, extra=extra)
    asked = body(ask(sampling=sampling))
    assert asked["inferenceConfig"] == {"maxTokens": 5, "temperature": 0.0, "topP": 0.5, "stopSequences": ["x"]}
    assert asked["performanceConfig"] == {"latency": "optimized"}


def test_a_tool_without_a_description_has_none() -> None:
    prompt = Prompt("", (LOOK, ToolSpec("go", " ", {"type": "object"})))
    look, go = body(replace(ask(), prompt=prompt))["toolConfig"]["tools"]
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    assert look == {"toolSpec": {"name": "look", "description": "Look it up", "inputSchema": {"json": schema}}}
    assert go == {"toolSpec": {"name": "go", "inputSchema": {"json": {"type": "object"}}}}


@pytest.mark.parametrize("may_call_tools", [True, False])
def test_tools_stay_in_a_request_that_forbids_tool_calls(may_call_tools: bool) -> None:
    request = ask(tools=True, system="Be brief.")
    assert body(replace(request, may_call_tools=may_call_tools)) == body(request)


def test_a_forced_call_is_encoded_with_the_tools() -> None:
    request = ask(tools=True, system="Be brief.")
    plain = body(request)["toolConfig"]
    assert body(replace(request, must_call="look"))["toolConfig"] == {**plain, "toolChoice": {"tool": {"name": "look"}}}
    assert body(replace(request, must_call=""))["toolConfig"] == {**plain, "toolChoice": {"any": {}}}
    assert body(request)["toolConfig"] == plain
    assert "toolConfig" not in body(replace(ask(), must_call="look"))


@pytest.mark.parametrize("model", [CLAUDE, NOVA, ARN])
def test_the_system_prompt_ends_with_a_cache_point(model: str) -> None:
    asked = body(ask(model=model, system="Be brief.", tools=True))
    assert asked["system"] == [{"text": "Be brief."}, POINT]
    assert POINT not in asked["toolConfig"]["tools"]


def test_without_a_system_prompt_the_cache_point_follows_the_tools() -> None:
    assert body(ask(model=CLAUDE, tools=True))["toolConfig"]["tools"][-1] == POINT
    assert POINT not in body(ask(model=NOVA, tools=True))["toolConfig"]["tools"]
    assert "system" not in body(ask(model=CLAUDE, system=" \n"))


def test_a_model_without_cache_points_gets_none() -> None:
    assert b"cachePoint" not in BedrockConverse().encode(ask(*talk(9), model=OTHER, system="Be brief.", tools=True))


def talk(length: int) -> list[Message]:
    """A task, and calls with their results in turn."""
    results = ToolResults((ToolResult(CALL, "found"),))
    turns: list[Message] = [Assistant("", (CALL,)), results]
    return [HI, *turns * length][:length]


@pytest.mark.parametrize(("model", "marked"), [(CLAUDE, [0, 2, 6]), (NOVA, [0])])
def test_a_conversation_with_tools_has_cache_points_at_fixed_positions(model: str, marked: list[int]) -> None:
    request = ask(*talk(11), model=model, system="Be brief.", tools=True)
    assert places(request) == marked
    assert BedrockConverse().encode(request).count(b"cachePoint") <= 4
    assert places(replace(request, may_call_tools=False)) == marked
    assert places(replace(request, prompt=Prompt("Be brief."))) == []


def places(request: Request) -> list[int]:
    messages = body(request)["messages"]
    return [index for index, message in enumerate(messages) if message["content"][-1] == POINT]


@pytest.mark.parametrize(
    ("model", "is_cached"),
    [
        ("anthropic.claude-3-5-haiku-20241022-v1:0", True),
        ("apac.anthropic.claude-3-7-sonnet-20250219-v1:0", True),
        ("global.anthropic.claude-opus-4-6-v1", True),
        ("anthropic.claude-sonnet-5", True),
        ("us.amazon.nova-micro-v1:0", True),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", False),
        ("anthropic.claude-3-haiku-20240307-v1:0", False),
        ("anthropic.claude-v2:1", False),
        ("anthropic.claude-instant-v1", False),
        ("amazon.nova-canvas-v1:0", False),
        ("notanthropic.claude-sonnet-5", False),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3", False),
    ],
)
def test_models_with_cache_points_are_known_by_their_name(model: str, is_cached: bool) -> None:
    assert (cache_support(model) is not None) is is_cached


@pytest.mark.parametrize(
    ("model", "keeps"),
    [
        (CLAUDE, True),
        ("qwen.qwen3-32b-v1:0", True),
        ("openai.gpt-oss-120b-1:0", True),
        ("us.anthropic.claude-opus-4-7", False),
        ("anthropic.claude-sonnet-5", False),
        (ARN, False),
        (NOVA, False),
    ],
)
def test_models_with_schema_support_are_known_by_their_name(model: str, keeps: bool) -> None:
    assert supports_schema(model) is keeps


def test_an_answer_schema_is_sent_as_text_in_its_strict_form() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    request = replace(ask(sampling=Sampling(extra={"outputConfig": {"effort": "low"}})), answer_schema=schema)
    config = body(request)["outputConfig"]
    assert config["effort"] == "low"
    assert config["textFormat"]["type"] == "json_schema"
    asked = config["textFormat"]["structure"]["jsonSchema"]
    assert asked["name"] == "answer"
    properties = {"n": {"type": "integer"}}
    strict = {"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}
    assert orjson.loads(asked["schema"]) == strict
    assert body(replace(request, answer_schema=None))["outputConfig"] == {"effort": "low"}


def test_a_turn_with_calls_and_its_results_is_encoded() -> None:
    other = ToolCall("tooluse_2", "look", "{}")
    results = ToolResults((ToolResult(CALL, "found"), ToolResult(other, " ", is_error=True)))
    said, heard = body(ask(HI, Assistant("Let me see.", (CALL, other)), results))["messages"][1:]
    use = {"toolUseId": "tooluse_1", "name": "look", "input": {"key": 1.0}}
    assert said == {
        "role": "assistant",
        "content": [
            {"text": "Let me see."},
            {"toolUse": use},
            {"toolUse": {**use, "toolUseId": "tooluse_2", "input": {}}},
        ],
    }
    assert heard == {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "found"}]}},
            {"toolResult": {"toolUseId": "tooluse_2", "content": [{"text": "(empty)"}], "status": "error"}},
        ],
    }


def test_the_models_own_arguments_are_sent_back_byte_for_byte() -> None:
    call = ToolCall("c", "look", '{ "key" :\t1.50, "b": "\\u00e9" }')
    assert call.arguments.encode() in BedrockConverse().encode(ask(HI, Assistant("", (call,))))


@pytest.mark.parametrize("arguments", ["", "[1]", '{"key": ', "\ud800"])
def test_arguments_that_are_not_an_object_are_encoded_as_data(arguments: str) -> None:
    said = body(ask(HI, Assistant("", (ToolCall("c", "look", arguments),))))["messages"][1]
    assert said["content"][0]["toolUse"]["input"] == {"malformed": arguments.replace("\ud800", "?")}


def test_only_signed_and_redacted_reasoning_is_sent_back_and_comes_first() -> None:
    thoughts = (Thought("Hm.", "c2ln"), Thought("unsigned"), Thought(redacted="cmVk"))
    content = body(ask(HI, Assistant("So.", (), thoughts)))["messages"][1]["content"]
    assert content == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "cmVk"}},
        {"text": "So."},
    ]


def test_no_blank_text_is_sent() -> None:
    spoken = body(ask(User(""), Assistant("\n"), User(" "), Assistant("\t", (CALL,))))["messages"]
    assert [message["content"][0] for message in spoken[:3]] == [{"text": "(empty)"}] * 3
    assert [list(block) for block in spoken[3]["content"]] == [["toolUse"]]


def test_consecutive_messages_of_one_role_are_merged() -> None:
    results = ToolResults((ToolResult(CALL, "found"),))
    spoken = body(ask(HI, Assistant("", (CALL,)), results, User("Again."), Assistant("a"), Assistant("b")))["messages"]
    assert [message["role"] for message in spoken] == ["user", "assistant", "user", "assistant"]
    assert [list(block) for block in spoken[2]["content"]] == [["toolResult"], ["text"]]


def test_an_invalid_call_id_is_replaced_equally_in_call_and_result() -> None:
    for foreign in ("", "a b", "x" * 65, "é", "\ud800"):
        call = ToolCall(foreign, "look", "{}")
        said, heard = body(ask(HI, Assistant("", (call,)), ToolResults((ToolResult(call, "found"),))))["messages"][1:]
        sent = said["content"][0]["toolUse"]["toolUseId"]
        assert sent == heard["content"][0]["toolResult"]["toolUseId"]
        assert sent.startswith("call_")


def test_an_invalid_tool_name_is_sent_with_valid_characters() -> None:
    for name, sent in (("look up!", "look_up_"), ("", "_"), ("x" * 70, "x" * 64), ("do_it-2", "do_it-2")):
        said = body(ask(HI, Assistant("", (ToolCall("c", name, "{}"),))))["messages"][1]
        assert said["content"][0]["toolUse"]["name"] == sent


def test_a_lone_surrogate_does_not_stop_a_request() -> None:
    assert body(ask(User("\ud800"), system="\udfff", tools=True))["system"][0] == {"text": "?"}
