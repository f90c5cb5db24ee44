"""What we send and what the local server says, checked with botocore's own model of the service."""

import asyncio
import base64
from contextlib import closing
from dataclasses import replace
from typing import Any

import orjson
import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError, EventStreamError  # type: ignore[import-untyped]
from botocore.session import Session  # type: ignore[import-untyped]
from tests.support.bedrock_server import KEY, SECRET, TOKEN, Fault, Said, bedrock_server, use_keys

from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse
from batch_agent.core.messages import Assistant, Prompt, Thought, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.requests import Request, Sampling

SESSION = Session()
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{CLAUDE}"
LOOK = ToolSpec("look", "Look it up", {"type": "object", "properties": {"key": {"type": "string"}}})
CALL = ToolCall("tooluse_1", "look", '{"key": "a", "n": [1.5, null]}')
SAMPLING = Sampling(
    temperature=0.5,
    top_p=0.9,
    max_tokens=100,
    stop=("END",),
    extra={
        "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "requestMetadata": {"team": "tests"},
        "outputConfig": {"effort": "low"},
    },
)
STORY = (
    User("Hi"),
    Assistant("Let me see.", (CALL,), (Thought("Hm.", "c2ln"), Thought(redacted="cmVk"))),
    ToolResults((ToolResult(CALL, "not there", is_error=True),)),
    Assistant("{}"),
    User("That answer cannot be used."),
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
WHOLE = Request(Prompt("Be brief.", (LOOK,)), STORY, CLAUDE, SAMPLING, answer_schema=SCHEMA)
REQUESTS = {
    "everything": WHOLE,
    "everything, streamed": replace(WHOLE, stream=True),
    "an ARN": replace(WHOLE, model=ARN),
    "next to nothing": Request(Prompt(""), (User(""),), "amazon.nova-lite-v1:0", Sampling()),
    "tools alone": Request(Prompt("", (LOOK, ToolSpec("go", "", {}))), STORY[:3], CLAUDE, Sampling()),
    "foreign ids": Request(
        Prompt("", (LOOK,)),
        (User("Hi"), Assistant("", (ToolCall("a b", "look", "no"),)), ToolResults((ToolResult(CALL, ""),))),
        CLAUDE,
        Sampling(),
    ),
}
EVERYTHING = Said(
    [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "cmVk"}},
        {"text": "Let me see."},
        {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"key": "a"}}},
    ],
    "tool_use",
)


async def by_botocore(url: str, request: Request) -> Any:
    """Sends it with botocore's own client, which checks it against the service model, and reads the answer."""

    def send() -> Any:
        theirs = SESSION.create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            aws_session_token=TOKEN,
            config=Config(retries={"total_max_attempts": 1}),
        )
        with closing(theirs):
            if not request.stream:
                return theirs.converse(**parameters(request))
            with closing(theirs.converse_stream(**parameters(request))["stream"]) as stream:
                return list(stream)

    return await asyncio.to_thread(send)


@pytest.fixture(autouse=True)
def no_keys_but_these(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)


def parameters(request: Request) -> dict[str, Any]:
    """Our bytes as the arguments that botocore takes: blobs are bytes there."""
    body = orjson.loads(BedrockConverse().encode(request))
    for block in (block for message in body["messages"] for block in message["content"]):
        thought = block.get("reasoningContent", {})
        if "redactedContent" in thought:
            thought["redactedContent"] = base64.b64decode(thought["redactedContent"])
    return {"modelId": request.model, **body}


@pytest.mark.parametrize("name", REQUESTS)
async def test_botocore_sends_the_same_request_for_the_same_conversation(name: str) -> None:
    request = REQUESTS[name]
    async with bedrock_server(lambda heard: EVERYTHING) as server:
        await by_botocore(server.url, request)
        (heard,) = server.heard
    assert heard.path == BedrockConverse().path(request)
    assert heard.body == orjson.loads(BedrockConverse().encode(request))
    assert heard.headers["content-type"] == "application/json"


async def test_botocore_decodes_the_plain_answers_of_the_test_server() -> None:
    async with bedrock_server(lambda heard: EVERYTHING) as server:
        answer = await by_botocore(server.url, WHOLE)
    content = answer["output"]["message"]["content"]
    assert content[1] == {"reasoningContent": {"redactedContent": b"red"}}
    assert [content[0], *content[2:]] == [EVERYTHING.blocks[0], *EVERYTHING.blocks[2:]]
    assert answer["stopReason"] == "tool_use"
    assert answer["usage"] == EVERYTHING.usage


async def test_botocore_decodes_the_streams_of_the_test_server() -> None:
    async with bedrock_server(lambda heard: EVERYTHING) as server:
        told = await by_botocore(server.url, replace(WHOLE, stream=True))
    deltas = [event["contentBlockDelta"]["delta"] for event in told if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == "Let me see."
    assert "".join(delta.get("toolUse", {}).get("input", "") for delta in deltas) == '{"key":"a"}'
    thoughts = [delta["reasoningContent"] for delta in deltas if "reasoningContent" in delta]
    assert thoughts == [{"text": "H"}, {"text": "m."}, {"signature": "c2ln"}, {"redactedContent": b"red"}]
    assert told[-2:] == [
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": {"usage": EVERYTHING.usage, "metrics": {"latencyMs": 5}}},
    ]


async def test_botocore_decodes_the_errors_of_the_test_server() -> None:
    fault = Fault(429, "ThrottlingException", "Too many requests")
    async with bedrock_server(lambda heard: fault) as server:
        with pytest.raises(ClientError, match=r"ThrottlingException.*Too many requests"):
            await by_botocore(server.url, WHOLE)


async def test_botocore_finds_the_exception_in_a_stream() -> None:
    async with bedrock_server(lambda heard: replace(EVERYTHING, breaks="exception")) as server:
        with pytest.raises(EventStreamError, match="throttlingException"):
            await by_botocore(server.url, replace(WHOLE, stream=True))
