"""Real SGLang does what our dialect counts on: plain requests, without our library."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from scripts.engines.layout import MODEL_NAME
from scripts.engines.sglang_env import VERSION

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
QUESTION: Json = {"role": "user", "content": "Search the web for the population of Paris."}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "paris"}}\n</tool_call>'
BY_HEART: Json = [{"role": "user", "content": f"Reply exactly:\n{CALL}"}]
UNKNOWN_BY_HEART: Json = [{"role": "user", "content": f"Reply exactly:\n{CALL.replace('search', 'find')}"}]


@dataclass(frozen=True, slots=True)
class Server:
    """Sends requests to one server and gives back what came, errors included."""

    http: aiohttp.ClientSession
    url: str

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: Json) -> tuple[int, Json]:
        async with self.http.post(self.url + path, json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def chat(self, **fields: Json) -> tuple[int, Json]:
        return await self.post("/v1/chat/completions", _body(fields))

    async def answer(self, **fields: Json) -> Json:
        status, body = await self.chat(**fields)
        assert status == 200, body
        return body

    async def message(self, **fields: Json) -> Json:
        return (await self.answer(**fields))["choices"][0]["message"]

    async def prompt_tokens(self, **fields: Json) -> int:
        return int((await self.answer(max_tokens=1, **fields))["usage"]["prompt_tokens"])

    async def stream(self, **fields: Json) -> list[Json]:
        """The data of a streamed answer, without the closing [DONE]."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        async with self.http.post(self.url + "/v1/chat/completions", json=_body(fields | streamed)) as response:
            blocks = (await response.text()).strip().split("\n\n")
            assert response.status == 200, blocks
        assert blocks[-1] == "data: [DONE]"
        return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@pytest_asyncio.fixture
async def server(sglang_url: str) -> AsyncIterator[Server]:
    async with aiohttp.ClientSession() as http:
        yield Server(http, sglang_url)


async def test_sglang_answers_a_chat(server: Server) -> None:
    body = await server.answer()
    assert body["choices"][0]["message"]["content"].strip()
    assert body["usage"]["prompt_tokens"] > 0
    assert 0 < body["usage"]["completion_tokens"] <= 24


async def test_sglang_streams_text_and_then_usage(server: Server) -> None:
    *events, last = await server.stream()
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


async def test_sglang_follows_a_json_schema(server: Server) -> None:
    message = await server.message(response_format=CITY, max_tokens=64)
    assert set(json.loads(message["content"])) == {"city", "population"}


async def test_sglang_parses_a_tool_call(server: Server) -> None:
    body = await server.answer(messages=BY_HEART, tools=[SEARCH], max_tokens=64)
    [choice] = body["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "search"
    assert json.loads(call["function"]["arguments"]) == {"query": "paris"}


async def test_sglang_streams_a_tool_call_in_pieces(server: Server) -> None:
    events = await server.stream(messages=BY_HEART, tools=[SEARCH], max_tokens=64)
    deltas = [delta for event in events for choice in event["choices"] for delta in _calls(choice["delta"])]
    # Only the first piece has the name and the id; the later ones have null.
    assert [delta["function"]["name"] for delta in deltas][:2] == ["search", None]
    assert deltas[0]["id"]
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == {"query": "paris"}


async def test_sglang_drops_a_call_of_an_unknown_tool(server: Server) -> None:
    message = await server.message(messages=UNKNOWN_BY_HEART, tools=[SEARCH], max_tokens=64)
    assert not _calls(message)
    assert message["content"] == ""


@pytest.mark.parametrize("tool", [SEARCH, STRICT_SEARCH], ids=["loose", "strict"])
async def test_a_schema_on_sglang_prevents_tool_calls(server: Server, tool: Json) -> None:
    message = await server.message(messages=BY_HEART, tools=[tool], response_format=CITY, max_tokens=64)
    assert not _calls(message)
    assert set(json.loads(message["content"])) == {"city", "population"}

    status, body = await server.chat(tools=[tool], tool_choice="required", response_format=CITY)
    assert status == 400
    assert "cannot be combined with response_format" in body["message"]


async def test_tool_choice_none_on_sglang_removes_the_tools_from_the_prompt(server: Server) -> None:
    without = await server.prompt_tokens()
    assert await server.prompt_tokens(tools=[]) == without
    assert await server.prompt_tokens(tools=[SEARCH], tool_choice="none") == without

    # A schema does the same for the answer, and leaves the prompt as it is.
    offered = await server.prompt_tokens(tools=[SEARCH])
    assert offered > without + 100
    assert await server.prompt_tokens(tools=[SEARCH], response_format=CITY) == offered


async def test_sglang_reports_the_cached_tokens_of_a_shared_prefix(server: Server) -> None:
    system = {"role": "system", "content": " ".join(f"Rule {number}: be brief." for number in range(30))}
    cached = []
    for question in ("Who are you?", "What is a cache?"):
        body = await server.answer(messages=[system, {"role": "user", "content": question}], max_tokens=1)
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] >= 128


async def test_prompts_with_different_cache_salts_share_no_prefix_on_sglang(server: Server) -> None:
    for salt in ("one", "two"):
        await server.answer(cache_salt=salt, max_tokens=1)
    body = await server.answer(cache_salt="three", max_tokens=1)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_sglang_accepts_integer_priorities(server: Server) -> None:
    for priority in (-5, 0, 5):
        await server.answer(priority=priority, max_tokens=1)
    status, body = await server.chat(priority=1.5)
    assert (status, body["code"]) == (400, 400)


async def test_an_sglang_session_opens_with_its_first_request_and_can_be_closed_any_time(server: Server) -> None:
    await server.answer(session_id="agent-1", max_tokens=1)
    for name in ("agent-1", "agent-1", "nobody"):
        assert await server.post("/close_session", {"session_id": name}) == (200, None)
    await server.answer(session_id="agent-1", max_tokens=1)
    assert await server.post("/close_session", {"session_id": "agent-1"}) == (200, None)


async def test_an_sglang_session_is_closed_only_by_a_body_with_a_json_content_type(server: Server) -> None:
    async with server.http.post(server.url + "/close_session", data=b'{"session_id": "agent-1"}') as response:
        assert response.status == 400


async def test_sglang_accepts_reasoning_and_calls_with_object_arguments(server: Server) -> None:
    await server.answer(messages=_history('{"query": "paris"}', reasoning_content="I should search."), tools=[SEARCH])
    for arguments, complaint in (
        ('{"query": "par', "must be valid JSON"),
        ("", "must be valid JSON"),
        ("[1]", "must be a JSON object"),
    ):
        status, body = await server.chat(messages=_history(arguments), tools=[SEARCH])
        assert status == 400
        assert complaint in body["message"]


async def test_sglang_reports_what_is_wrong_with_a_request(server: Server) -> None:
    status, body = await server.chat(messages=[{"role": "user", "content": "word " * 5000}])
    assert (status, body["type"]) == (400, "BadRequestError")
    assert body["message"] == "The input (5022 tokens) is longer than the model's context length (4096 tokens)."

    status, body = await server.chat(messages=[{"role": "user", "content": "word " * 4000}], max_tokens=500)
    assert (status, body["type"]) == (400, "BadRequestError")
    assert body["message"].startswith("Requested token count exceeds the model's maximum context length of 4096 tokens")


async def test_sglang_accepts_any_model_name(server: Server) -> None:
    body = await server.answer(model="nobody", max_tokens=1)
    assert body["model"] == "nobody"


async def test_sglang_reports_its_model_and_enabled_features(server: Server) -> None:
    status, models = await server.get("/v1/models")
    [model] = json.loads(models)["data"]
    assert (status, model["id"], model["owned_by"]) == (200, MODEL_NAME, "sglang")
    assert model["max_model_len"] == 4096

    status, info = await server.get("/server_info")
    assert status == 200
    expected = {
        "version": VERSION,
        "max_total_num_tokens": 8192,
        "context_length": 4096,
        "tool_call_parser": "hermes",
        "grammar_backend": "xgrammar",
        "disable_radix_cache": False,
        "enable_cache_report": True,
        "enable_session_radix_cache": True,
        "enable_priority_scheduling": True,
    }
    assert json.loads(info).items() >= expected.items()


async def test_sglang_reports_its_load(server: Server) -> None:
    status, loads = await server.get("/v1/loads")
    [load] = json.loads(loads)["loads"]
    assert status == 200
    assert load["max_total_num_tokens"] == 8192
    assert {"num_running_reqs", "num_waiting_reqs", "num_used_tokens", "token_usage", "cache_hit_rate"} <= set(load)

    status, metrics = await server.get("/metrics")
    assert status == 200
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate", "max_total_num_tokens"):
        assert f"\nsglang:{name}{{" in metrics


async def test_sglang_counts_the_tokens_of_a_prompt(server: Server) -> None:
    status, body = await server.post("/tokenize", {"model": MODEL_NAME, "messages": [QUESTION], "tools": [SEARCH]})
    assert status == 200
    assert body["count"] == len(body["tokens"]) == await server.prompt_tokens(tools=[SEARCH])


async def test_sglang_supports_the_messages_api(server: Server) -> None:
    tool = {"name": "search", "description": "Search.", "input_schema": SEARCH["function"]["parameters"]}
    body = {"model": MODEL_NAME, "max_tokens": 64, "temperature": 0, "messages": BY_HEART, "tools": [tool]}
    status, answer = await server.post("/v1/messages", body)
    assert (status, answer["stop_reason"]) == (200, "tool_use")
    [used] = answer["content"]
    assert (used["type"], used["name"], used["input"]) == ("tool_use", "search", {"query": "paris"})


def _body(fields: dict[str, Json]) -> dict[str, Json]:
    return {"model": MODEL_NAME, "messages": [QUESTION], "max_tokens": 24, "temperature": 0} | fields


def _history(arguments: str, **fields: str) -> Json:
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": arguments}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]} | fields
    return [QUESTION, assistant, {"role": "tool", "tool_call_id": "call_1", "content": "2 million"}]


def _calls(message: Json) -> list[Json]:
    return message.get("tool_calls") or []
