"""The real engines do what our dialects count on: plain requests, without our library."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest_asyncio
from scripts.engines.layout import MODEL_NAME

# Bodies are JSON of many shapes; an assertion on a missing key fails the test as it should.
Json = Any

SEARCH: Json = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "maxLength": 40}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
STRICT_SEARCH: Json = SEARCH | {"function": SEARCH["function"] | {"strict": True}}
CITY: Json = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
            },
            "required": ["city", "population"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "Search the web for the population of Paris."}]
CALL_BY_HEART = 'Reply exactly:\n<tool_call>\n{"name": "search", "arguments": {"query": "paris"}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Caller:
    """Sends chat completions and gives back what came, errors included."""

    http: aiohttp.ClientSession

    async def chat(self, url: str, **fields: Json) -> tuple[int, Json]:
        async with self.http.post(f"{url}/v1/chat/completions", json=_body(fields)) as response:
            return response.status, await response.json()

    async def message(self, url: str, **fields: Json) -> Json:
        status, body = await self.chat(url, **fields)
        assert status == 200, body
        return body["choices"][0]["message"]

    async def stream(self, url: str, **fields: Json) -> list[tuple[str, Json]]:
        """The events of a streamed answer, as name and data, without the closing [DONE]."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        async with self.http.post(f"{url}/v1/chat/completions", json=_body(fields | streamed)) as response:
            blocks = (await response.text()).strip().split("\n\n")
            assert response.status == 200, blocks
        assert blocks[-1] == "data: [DONE]"
        return [_event(block) for block in blocks[:-1]]


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as http:
        yield Caller(http)


async def test_vllm_answers_a_chat(vllm_url: str, caller: Caller) -> None:
    status, body = await caller.chat(vllm_url)
    assert status == 200, body
    assert body["choices"][0]["message"]["content"].strip()
    assert body["usage"]["prompt_tokens"] > 0
    assert 0 < body["usage"]["completion_tokens"] <= 24


async def test_vllm_streams_text_and_then_usage(vllm_url: str, caller: Caller) -> None:
    events = await caller.stream(vllm_url)
    assert _text(events).strip()
    assert events[-1][1]["choices"] == []
    assert events[-1][1]["usage"]["completion_tokens"] > 0


async def test_vllm_calls_the_forced_tool(vllm_url: str, caller: Caller) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "search"}}):
        message = await caller.message(vllm_url, tools=[STRICT_SEARCH], tool_choice=choice, max_tokens=64)
        [call] = message["tool_calls"]
        assert call["function"]["name"] == "search"
        assert list(json.loads(call["function"]["arguments"])) == ["query"]


async def test_vllm_streams_a_tool_call_in_pieces(vllm_url: str, caller: Caller) -> None:
    events = await caller.stream(vllm_url, tools=[STRICT_SEARCH], tool_choice="required", max_tokens=64)
    deltas = [
        delta for event in events for choice in event[1]["choices"] for delta in choice["delta"].get("tool_calls") or ()
    ]
    assert deltas[0]["function"]["name"] == "search"
    assert list(json.loads("".join(delta["function"].get("arguments") or "" for delta in deltas))) == ["query"]


async def test_vllm_follows_a_json_schema(vllm_url: str, caller: Caller) -> None:
    message = await caller.message(vllm_url, response_format=CITY, max_tokens=64)
    assert set(json.loads(message["content"])) == {"city", "population"}


async def test_a_schema_on_vllm_prevents_calls_of_a_tool_that_is_not_strict(vllm_url: str, caller: Caller) -> None:
    fields: Json = {"messages": [{"role": "user", "content": CALL_BY_HEART}], "max_tokens": 64}
    called = await caller.message(vllm_url, tools=[SEARCH], **fields)
    assert called["tool_calls"][0]["function"]["name"] == "search"

    ruled_out = await caller.message(vllm_url, tools=[SEARCH], response_format=CITY, **fields)
    assert not ruled_out.get("tool_calls")
    assert ruled_out["content"].lstrip().startswith("{")

    either = await caller.message(vllm_url, tools=[STRICT_SEARCH], response_format=CITY, **fields)
    assert either["tool_calls"][0]["function"]["name"] == "search"


async def test_vllm_reports_the_cached_tokens_of_a_shared_prefix(vllm_url: str, caller: Caller) -> None:
    system = {"role": "system", "content": " ".join(f"Rule {number}: be brief." for number in range(30))}
    cached = []
    for question in ("Who are you?", "What is a cache?"):
        messages = [system, {"role": "user", "content": question}]
        status, body = await caller.chat(vllm_url, messages=messages, max_tokens=1)
        assert status == 200, body
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] >= 128


async def test_vllm_reports_what_is_wrong_with_a_request(vllm_url: str, caller: Caller) -> None:
    status, body = await caller.chat(vllm_url, model="nobody")
    assert (status, body["error"]["type"]) == (404, "NotFoundError")

    status, body = await caller.chat(vllm_url, messages=[{"role": "user", "content": "word " * 5000}])
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, "BadRequestError", "input_tokens")
    assert "maximum context length is 4096 tokens" in body["error"]["message"]


async def test_dynamo_answers_a_chat(dynamo_url: str, caller: Caller) -> None:
    message = await caller.message(dynamo_url, nvext=_replay("text"))
    assert message["content"].startswith("The answer is forty two")


async def test_dynamo_streams_text_and_then_usage(dynamo_url: str, caller: Caller) -> None:
    events = await caller.stream(dynamo_url, nvext=_replay("text"))
    assert _text(events).startswith("The answer is forty two")
    assert events[-1][1]["usage"]["completion_tokens"] > 0


async def test_dynamo_parses_a_tool_call(dynamo_url: str, caller: Caller) -> None:
    message = await caller.message(dynamo_url, tools=[SEARCH], nvext=_replay("one_call"))
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "search"
    assert json.loads(call["function"]["arguments"]) == {"query": "prefix cache"}


async def test_dynamo_dispatches_each_streamed_call_before_its_chunk(dynamo_url: str, caller: Caller) -> None:
    events = await caller.stream(dynamo_url, tools=[SEARCH], nvext=_replay("two_calls"))
    dispatched = [position for position, (name, _) in enumerate(events) if name == "tool_call_dispatch"]
    assert len(dispatched) == 2
    for position in dispatched:
        early, [late] = events[position][1]["tool_call"], events[position + 1][1]["choices"][0]["delta"]["tool_calls"]
        assert early == late


async def test_dynamo_reports_the_cached_tokens_of_a_shared_prefix(dynamo_url: str, caller: Caller) -> None:
    system = {"role": "system", "content": " ".join(f"Law {number}: be brief." for number in range(30))}
    cached = []
    for question in ("Who are you?", "What is a cache?", "And a router?"):
        messages = [system, {"role": "user", "content": question}]
        status, body = await caller.chat(dynamo_url, messages=messages, max_tokens=1)
        assert status == 200, body
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert max(cached[1:]) >= 128  # two workers: the second request may go to the other one


async def test_dynamo_reports_what_is_wrong_with_a_request(dynamo_url: str, caller: Caller) -> None:
    status, body = await caller.chat(dynamo_url, model="nobody")
    assert (status, body) == (404, {"message": "Model not found", "type": "Not Found", "code": 404})

    status, body = await caller.chat(dynamo_url, priority=1)
    assert (status, body["message"]) == (400, "Validation: Unsupported parameter(s): `priority`")


def _body(fields: dict[str, Json]) -> dict[str, Json]:
    return {"model": MODEL_NAME, "messages": QUESTION, "max_tokens": 24, "temperature": 0} | fields


def _replay(name: str) -> Json:
    return {"annotations": [f"output_replay_id:{name}"]}


def _event(block: str) -> tuple[str, Json]:
    lines = dict(line.split(": ", 1) for line in block.splitlines())
    return lines.get("event", "message"), json.loads(lines["data"])


def _text(events: list[tuple[str, Json]]) -> str:
    deltas = [choice["delta"] for _, data in events for choice in data["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
