"""Images on the wire: accepted by the types of the official SDKs, in the place where the message has them."""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.support.pictures import picture

from batch_agent import Image
from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse
from batch_agent.backends.dialects.dialect import Dialect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.images import ImageRef, PlacedImage
from batch_agent.core.messages import Assistant, Message, Prompt, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.requests import Request, Sampling
from batch_agent.media.image_files import identify, with_image_data

DATA = picture()
RED = identify(Image(DATA))
URL = ImageRef("u", url="https://example.com/a.png")
S3 = ImageRef("s", url="s3://bucket/a.jpg")
LOOK = ToolSpec("look", "Look it up", {"type": "object", "properties": {}})
CALL = ToolCall("call_1", "look", "{}")
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"


def story(*images: ImageRef) -> tuple[Message, ...]:
    placed = tuple(PlacedImage(11, image) for image in images)
    return (
        User("What is in ?", 11, images=placed),
        Assistant("", (CALL,)),
        ToolResults((ToolResult(CALL, "found", images=images),)),
    )


def body(dialect: Dialect, messages: tuple[Message, ...], model: str = CLAUDE) -> dict[str, Any]:
    request = Request(Prompt("", (LOOK,)), with_image_data(messages), model, Sampling(max_tokens=9))
    encoded: dict[str, Any] = orjson.loads(dialect.encode(request))
    return encoded


def test_openais_types_accept_images_of_messages_and_results() -> None:
    sent = body(OpenAIChat(), story(RED, URL))["messages"]
    user, _, tool, images = sent
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "image_url", "text"]
    kind, _, encoded = user["content"][1]["image_url"]["url"].partition(",")
    assert (kind, b64decode(encoded)) == ("data:image/png;base64", DATA)
    assert user["content"][2]["image_url"] == {"url": URL.url}
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": "found"}
    assert images["role"] == "user"
    assert images["content"][0] == {"type": "text", "text": "Images that look returned (call_1):"}
    assert images["content"][1:] == user["content"][1:3]


@pytest.mark.slow
def test_the_types_of_the_official_sdks_accept_what_is_sent() -> None:
    from anthropic.types import MessageParam
    from openai.types.chat import ChatCompletionMessageParam

    for dialect, kind in (
        (OpenAIChat(), ChatCompletionMessageParam),
        (AnthropicMessages(strict_schema=True), MessageParam),
    ):
        sent = body(dialect, story(RED, URL))["messages"]
        adapter = TypeAdapter[Any](list[kind])  # type: ignore[valid-type]
        assert checked(adapter.validate_python(sent)) == sent, "a field that the SDK does not know is dropped"


def checked(read: Any) -> Any:
    """What was read, with its lists: pydantic checks an Iterable only while it is read."""
    if isinstance(read, dict):
        return {name: checked(value) for name, value in read.items()}
    return [checked(part) for part in read] if isinstance(read, Iterable) and not isinstance(read, str) else read


def test_anthropic_has_images_as_blocks_of_messages_and_of_results() -> None:
    user, _, results = body(AnthropicMessages(strict_schema=True), story(RED, URL))["messages"]
    assert [block["type"] for block in user["content"]] == ["text", "image", "image", "text"]
    source = user["content"][1]["source"]
    assert (source["type"], source["media_type"], b64decode(source["data"])) == ("base64", "image/png", DATA)
    assert user["content"][2]["source"] == {"type": "url", "url": URL.url}
    [result] = results["content"]
    assert result["content"] == [{"type": "text", "text": "found"}, *user["content"][1:3]]


def test_botocores_model_of_bedrock_accepts_images() -> None:
    from botocore.session import Session  # type: ignore[import-untyped]
    from botocore.validate import ParamValidator  # type: ignore[import-untyped]

    sent = body(BedrockConverse(), story(RED, S3))
    user, _, results = sent["messages"]
    image = user["content"][1]["image"]
    assert (image["format"], b64decode(image["source"]["bytes"])) == ("png", DATA)
    assert user["content"][2]["image"] == {"format": "jpeg", "source": {"s3Location": {"uri": S3.url}}}
    assert results["content"][0]["toolResult"]["content"][1:] == [user["content"][1], user["content"][2]]
    shape = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
    problems = ParamValidator().validate({"modelId": CLAUDE, **sent}, shape)
    assert not problems.has_errors(), problems.generate_report()


def test_a_mark_of_the_cache_follows_the_shared_text_and_not_the_image_behind_it() -> None:
    shared = "How to look at pictures. " * 60
    message = User(f"{shared}Now.", len(shared), images=(PlacedImage(len(shared), RED),))
    [sent] = body(AnthropicMessages(strict_schema=True), (message,))["messages"]
    assert [("cache_control" in block, block["type"]) for block in sent["content"]] == [
        (True, "text"), (False, "image"), (False, "text"),
    ]  # fmt: skip
    [sent] = body(BedrockConverse(), (message,))["messages"]
    assert [next(iter(block)) for block in sent["content"]][:4] == ["text", "cachePoint", "image", "text"]


def test_a_message_that_is_only_an_image_has_no_blank_text() -> None:
    message = User(" ", images=(PlacedImage(1, RED),))
    for dialect in (OpenAIChat(), AnthropicMessages(), BedrockConverse()):
        [sent] = body(dialect, (message,), "m")["messages"]
        assert len(sent["content"]) == 1
        assert "text" not in sent["content"][0]


def test_what_is_not_sent_shows_labels_instead_of_bytes() -> None:
    request = Request(Prompt(""), (User("Hi", images=(PlacedImage(0, replace(RED, data=None)),)),), "m", Sampling())
    for dialect in (OpenAIChat(), AnthropicMessages(), BedrockConverse()):
        assert (
            f"<image, image/png, 40x30, {len(DATA)} bytes, blake2b {RED.digest[:12]}>"
            in dialect.encode(request).decode()
        )


messages = st.lists(
    st.builds(
        lambda text, at, count: User(text, images=tuple(PlacedImage(min(at, len(text)), RED) for _ in range(count))),
        st.text(max_size=20),
        st.integers(0, 20),
        st.integers(0, 2),
    )
    | st.just(Assistant("", (CALL,)))
    | st.builds(lambda count: ToolResults((ToolResult(CALL, "x", images=(RED,) * count),)), st.integers(0, 2)),
    min_size=2,
    max_size=5,
)


@pytest.mark.parametrize(
    "dialect", [OpenAIChat(), AnthropicMessages(), AnthropicMessages(strict_schema=True), BedrockConverse()]
)
@settings(max_examples=25)
@given(messages)
def test_a_turn_with_images_is_a_prefix_of_the_next_one(dialect: Dialect, told: list[Message]) -> None:
    prompt, sampling, loaded = Prompt("s", (LOOK,)), Sampling(), with_image_data(tuple(told))
    turns = [dialect.encode(Request(prompt, loaded[:end], "m", sampling)) for end in range(1, len(loaded) + 1)]
    for turn, following in pairwise(turns):
        end = turn.rindex(b"]}]") if isinstance(dialect, BedrockConverse) else turn.rindex(b"]")
        assert following.startswith(turn[:end])
