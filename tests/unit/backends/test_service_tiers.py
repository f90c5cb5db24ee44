"""The lane flex on the wire: the tier in the request, the tier by which a response is billed, refusals for capacity."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server
from yarl import URL

from batch_agent import BackendError, ErrorKind, SpecError
from batch_agent.backends.dialects.anthropic import decoder as anthropic
from batch_agent.backends.dialects.bedrock import decoder as bedrock
from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse
from batch_agent.backends.dialects.openai.decoder import OpenAIStreamDecoder, decode_reply
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.dialects.response_body import billed_lane
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.backends.http_errors import translate_status
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Finished, Lane, Request, Sampling, Usage
from batch_agent.core.spec import BatchSpec
from batch_agent.schedule.retry import is_overload_refusal

PLAIN = Request(Prompt("Be brief."), (User("Hi"),), "m", Sampling())
FLEX = replace(PLAIN, lane="flex")
TRAITS = Traits("test", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)
USED = {"prompt_tokens": 10, "completion_tokens": 2}
USAGE = Usage(10, 0, 2)


def usage_of(deltas: list[Delta]) -> Usage:
    [last] = [delta for delta in deltas if isinstance(delta, Finished)]
    return last.usage


def openai_reply(tier: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": USED, **({} if tier is None else {"service_tier": tier})}


def openai_plain(lane: Lane, tier: Any) -> Usage:
    return usage_of(decode_reply(orjson.dumps(openai_reply(tier)), lane))


def openai_streamed(lane: Lane, tier: Any) -> Usage:
    named = {} if tier is None else {"service_tier": tier}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "Hi"}}], **named},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **named},
        {"choices": [], "usage": USED, **named},
    ]
    decoder = OpenAIStreamDecoder(lane)
    body = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    return usage_of(list(decoder.feed(body)))


def bedrock_plain(lane: Lane, tier: Any) -> Usage:
    body = {
        "output": {"message": {"content": [{"text": "Hi"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 10, "outputTokens": 2},
        **({} if tier is None else {"serviceTier": {"type": tier}}),
    }
    return usage_of(bedrock.decode_reply(orjson.dumps(body), lane))


@pytest.mark.parametrize("decoded", [openai_plain, openai_streamed, bedrock_plain])
@pytest.mark.parametrize(
    ("lane", "tier", "billed"),
    [
        ("standard", None, "standard"),
        ("standard", "default", "standard"),
        ("standard", "flex", "flex"),  # the project's own default
        ("flex", "flex", "flex"),
        ("flex", None, "flex"),
        ("flex", "default", "standard"),
        ("flex", "priority", "standard"),
        ("flex", 5, "flex"),
        ("batch", "default", "batch"),
        ("batch", None, "batch"),
    ],
)
def test_a_response_is_billed_by_the_tier_that_it_names(decoded: Any, lane: Lane, tier: Any, billed: Lane) -> None:
    assert decoded(lane, tier) == (USAGE if billed == "standard" else USAGE.in_lane(billed))


def test_a_reply_of_anthropic_is_billed_in_the_lane_of_its_request() -> None:
    body = {
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
    assert usage_of(anthropic.decode_reply(orjson.dumps(body), "batch")) == USAGE.in_lane("batch")


def test_only_flex_requests_name_a_tier_and_the_messages_stay_a_prefix() -> None:
    dialect = OpenAIChat()
    plain, flex = dialect.encode(PLAIN), dialect.encode(FLEX)
    assert "service_tier" not in orjson.loads(plain)
    assert orjson.loads(flex) == {**orjson.loads(plain), "service_tier": "flex"}
    assert flex.startswith(plain[:-1])
    assert dialect.encode(replace(PLAIN, lane="batch")) == plain


def test_bedrock_has_the_tier_as_an_object_that_its_client_library_knows() -> None:
    from botocore.session import get_session  # type: ignore[import-untyped]

    dialect = BedrockConverse()
    plain, flex = orjson.loads(dialect.encode(PLAIN)), orjson.loads(dialect.encode(FLEX))
    assert flex == {**plain, "serviceTier": {"type": "flex"}}
    service = get_session().get_service_model("bedrock-runtime")
    assert "flex" in service.shape_for("ServiceTier").members["type"].enum
    for operation in ("Converse", "ConverseStream"):
        assert "serviceTier" in service.operation_model(operation).input_shape.members
    assert "serviceTier" in service.operation_model("Converse").output_shape.members
    assert "serviceTier" in service.shape_for("ConverseStreamMetadataEvent").members


OPENAI_REFUSAL = {"error": {"message": "Flex is busy.", "type": "resource_unavailable", "code": "resource_unavailable"}}
RATE_LIMIT = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
GROQ_REFUSAL = {"error": {"message": "No capacity.", "type": "capacity_exceeded", "code": "capacity_exceeded"}}
QUOTA = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("status", "body", "in_flex", "in_standard"),
    [
        (429, OPENAI_REFUSAL, ErrorKind.CAPACITY, ErrorKind.RATE_LIMITED),
        (429, {"error": {"message": "429 Resource Unavailable"}}, ErrorKind.CAPACITY, ErrorKind.RATE_LIMITED),
        (429, RATE_LIMIT, ErrorKind.RATE_LIMITED, ErrorKind.RATE_LIMITED),
        (429, QUOTA, ErrorKind.AUTH, ErrorKind.AUTH),
        (503, {"error": {"status": "UNAVAILABLE"}}, ErrorKind.CAPACITY, ErrorKind.UNAVAILABLE),
        (498, GROQ_REFUSAL, ErrorKind.CAPACITY, ErrorKind.BAD_REQUEST),
        (500, OPENAI_REFUSAL, ErrorKind.SERVER, ErrorKind.SERVER),
        (400, {"error": {"message": "Flex is not available for this model."}}, ErrorKind.BAD_REQUEST, None),
    ],
)
def test_a_refusal_for_capacity_is_told_from_a_rate_limit(
    status: int, body: Any, in_flex: ErrorKind, in_standard: ErrorKind | None
) -> None:
    def error(lane: Lane) -> BackendError:
        return translate_status(status, {}, orjson.dumps(body), "http://x", lane)

    assert error("flex").kind is in_flex
    assert error("standard").kind is (in_standard or in_flex)
    if in_flex is ErrorKind.CAPACITY:
        assert not error("flex").may_be_billed
        assert not is_overload_refusal(error("flex"))


@asynccontextmanager
async def backend_at(url: str) -> AsyncIterator[HttpBackend]:
    root = URL(url) / "v1"
    backend = HttpBackend(ServerClient(open_transport(root, {}), root), OpenAIChat(), TRAITS)
    try:
        yield backend
    finally:
        await backend.aclose()


async def ask(backend: HttpBackend, request: Request) -> list[Delta]:
    async with asyncio.timeout(60), backend.stream(request) as deltas:
        return [delta async for delta in deltas]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("header", "billed"), [("", "flex"), ("flex", "flex"), ("standard", "standard")])
async def test_gemini_names_the_tier_in_a_header(header: str, billed: Lane, stream: bool) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        assert orjson.loads(request.body)["service_tier"] == "flex"
        headers = f"x-gemini-service-tier: {header}\r\n" if header else ""
        body = openai_reply(None)
        if stream:
            chunk = {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": USED}
            data = b"data: " + orjson.dumps(chunk) + b"\n\ndata: [DONE]\n\n"
            await line.reply(200, data, f"{headers}content-type: text/event-stream\r\n")
        else:
            await line.reply(200, orjson.dumps(body), f"{headers}content-type: application/json\r\n")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        used = usage_of(await ask(backend, replace(FLEX, stream=stream)))
    assert used == (USAGE if billed == "standard" else USAGE.in_lane(billed))


async def test_a_request_in_flex_fails_with_capacity_over_http() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(429, orjson.dumps(OPENAI_REFUSAL), "content-type: application/json\r\n")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendError, match="Flex is busy") as raised:
            await ask(backend, FLEX)
        assert raised.value.kind is ErrorKind.CAPACITY


@pytest.mark.parametrize("name", ["service_tier", "serviceTier"])
def test_a_tier_in_extra_contradicts_a_lane(name: str) -> None:
    assert BatchSpec.of(task="{it}", inputs=["a"], extra={name: "priority"}).lane == "standard"
    with pytest.raises(SpecError, match=f"extra must not hold '{name}', which lane= sets"):
        BatchSpec.of(task="{it}", inputs=["a"], lane="flex", extra={name: "priority"})


@pytest.mark.parametrize("extra", [{"service_tier": "flex"}, {"serviceTier": {"type": "flex"}}])
def test_flex_in_extra_is_refused_because_it_would_be_priced_twice(extra: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="pass lane='flex' for flex requests"):
        BatchSpec.of(task="{it}", inputs=["a"], extra=extra)


def test_the_tiers_are_those_of_the_official_client() -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    for model in (ChatCompletion, ChatCompletionChunk):
        tiers = get_args(get_args(model.model_fields["service_tier"].annotation)[0])
        expected = {tier: "flex" if tier in ("auto", "flex") else "standard" for tier in tiers}
        assert {tier: billed_lane("flex", tier) for tier in tiers} == expected
        assert {"auto", "default", "flex"} <= set(tiers)


async def test_the_official_client_sends_the_same_field_and_gets_the_same_refusal() -> None:
    from openai import AsyncOpenAI, RateLimitError

    bodies: list[dict[str, Any]] = []

    async def answer(request: RawRequest, line: Line) -> None:
        bodies.append(orjson.loads(request.body))
        await line.reply(429, orjson.dumps(OPENAI_REFUSAL), "content-type: application/json\r\n")

    async with raw_server(answer) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendError):
            await ask(backend, FLEX)
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-x", max_retries=0) as client:
            with pytest.raises(RateLimitError) as raised:
                await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                    service_tier="flex",
                )
    assert bodies[0] == bodies[1]
    assert raised.value.code == "resource_unavailable"
