import json
from typing import Any

import pytest

from batch_agent.sim import SimServer

from .conftest import Send

CHAT = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        },
    }
]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": text}], **more}


def test_a_chat_is_answered_with_exact_usage(sim: SimServer, send: Send) -> None:
    body = send(sim, CHAT, chat("exact usage", max_tokens=100)).json()
    choice = body["choices"][0]
    assert body["object"] == "chat.completion"
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
    assert len(choice["message"]["content"]) == 63 * 4
    assert body["usage"]["completion_tokens"] == 64
    tokens = send(sim, "/tokenize", chat("exact usage")).json()
    assert body["usage"]["prompt_tokens"] == tokens["count"] == len(tokens["tokens"])
    assert body["usage"]["total_tokens"] == tokens["count"] + 64


def test_the_second_turn_hits_the_first_with_its_answer(sim: SimServer, send: Send) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "second turn " + "x" * 400}]
    request = {"model": "sim", "messages": messages, "tools": TOOLS}
    first = send(sim, CHAT, request).json()
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert message["content"] is None
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "found it"}]
    second = send(sim, CHAT, request).json()
    assert second["choices"][0]["message"]["content"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    known = first["usage"]["total_tokens"]
    assert known - 17 <= cached < known
    assert cached % 16 == 0


def test_a_stream_adds_up_to_the_plain_answer(sim: SimServer, send: Send) -> None:
    plain = send(sim, CHAT, chat("stream")).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = send(sim, CHAT, chat("stream", **options))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, usage = answer.events()
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == plain["choices"][0]["message"]["content"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert "usage" not in send(sim, CHAT, chat("stream", stream=True)).events()[-1]


def test_calls_stream_with_name_and_id_first_and_then_their_arguments(sim: SimServer, send: Send) -> None:
    order = '[[sim: {"calls": [{"name": "a", "arguments": {"x": "long enough"}}, {"name": "b", "arguments": "{}"}]}]]'
    plain = send(sim, CHAT, chat(order)).json()["choices"][0]["message"]["tool_calls"]
    calls: dict[int, dict[str, str]] = {}
    for event in send(sim, CHAT, chat(order, stream=True)).events():
        for piece in event["choices"][0]["delta"].get("tool_calls", []):
            if "id" in piece:
                calls[piece["index"]] = {"name": piece["function"]["name"], "arguments": ""}
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    assert list(calls.values()) == [call["function"] for call in plain]


def test_completions_take_a_text_a_list_and_token_ids(sim: SimServer, send: Send) -> None:
    one = send(sim, "/v1/completions", {"model": "sim", "prompt": "hello", "max_tokens": 5}).json()
    assert (one["object"], one["choices"][0]["finish_reason"]) == ("text_completion", "length")
    assert one["usage"]["completion_tokens"] == 5
    many = send(sim, "/v1/completions", {"prompt": ["hello", "other"], "max_tokens": 5}).json()
    assert [choice["index"] for choice in many["choices"]] == [0, 1]
    assert many["choices"][0]["text"] == one["choices"][0]["text"] != many["choices"][1]["text"]
    assert many["usage"]["completion_tokens"] == 10
    ids = send(sim, "/tokenize", {"prompt": "hello"}).json()["tokens"]
    assert send(sim, "/v1/completions", {"prompt": ids, "max_tokens": 5}).json()["choices"] == one["choices"]


def test_streamed_completions_name_the_prompt_they_belong_to(sim: SimServer, send: Send) -> None:
    request = {"prompt": ["hello", "other"], "max_tokens": 5}
    plain = send(sim, "/v1/completions", request).json()["choices"]
    texts = {0: "", 1: ""}
    for event in send(sim, "/v1/completions", {**request, "stream": True}).events():
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {choice["index"]: choice["text"] for choice in plain}


def test_ignore_eos_generates_up_to_the_limit(sim: SimServer, send: Send) -> None:
    body = send(sim, CHAT, chat("hi", max_tokens=200, ignore_eos=True)).json()
    assert body["usage"]["completion_tokens"] == 200
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_cache_salt_isolates(sim: SimServer, send: Send) -> None:
    def cached(**more: str) -> int:
        usage = send(sim, CHAT, chat("salt " * 100, **more)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    assert cached() > 100
    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") > 100


def test_a_context_overflow_is_a_400_with_vllms_text(sim: SimServer, send: Send) -> None:
    for request in (chat("x" * 10_000), chat("x", max_tokens=3000)):
        answer = send(sim, CHAT, request)
        assert answer.status == 400
        error = answer.json()["error"]
        assert error["message"].startswith(
            "This model's maximum context length is 2048 tokens. However, you requested "
        )
        assert error["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, b"{not json", 400, "not JSON"),
        (CHAT, b"[]", 400, "JSON object"),
        (CHAT, {"model": "sim"}, 400, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "cannot be read"),
        (CHAT, {"messages": ["hello"]}, 400, "cannot be read"),
        (CHAT, chat("hi", max_tokens=0), 400, "max_tokens must be at least 1, got 0."),
        (CHAT, chat("hi", n=2), 400, "n must be 1"),
        (CHAT, chat("hi", priority="high"), 400, "priority"),
        (CHAT, chat("[[sim: {]]"), 400, "directive"),
        (CHAT, {**chat("hi"), "model": "other"}, 404, "The model `other` does not exist."),
        ("/v1/completions", {"prompt": ""}, 400, "empty"),
        ("/v1/completions", {"prompt": [[1, -2]]}, 400, "token ids"),
        ("/v1/completions", {}, 400, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_request_gets_an_error_that_says_why(
    sim: SimServer, send: Send, path: str, body: Any, status: int, words: str
) -> None:
    answer = send(sim, path, body)
    assert answer.status == status
    assert words in answer.json()["error"]["message"]


def test_the_other_routes_say_what_vllms_say(sim: SimServer, send: Send) -> None:
    assert send(sim, "/health").status == 200
    assert "version" in send(sim, "/version").json()
    model = send(sim, "/v1/models").json()["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("sim", "batch-agent-sim", 2048)
    assert send(sim, "/nowhere").status == 404
    assert send(sim, CHAT).status == 405


def test_the_metrics_have_vllms_names_and_count_tokens(sim: SimServer, send: Send) -> None:
    before = sim.metrics()
    usage = [send(sim, CHAT, chat("metrics " * 50)).json()["usage"] for _ in range(2)]
    after = sim.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("vllm:prefix_cache_queries_total") == sum(each["prompt_tokens"] for each in usage)
    assert grown("vllm:prefix_cache_hits_total") == usage[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert grown("vllm:generation_tokens_total") == 128
    assert grown("vllm:request_success_total") == 2
    for name in ("num_requests_running", "num_requests_waiting", "num_preemptions_total", "kv_cache_usage_perc"):
        assert after[f"vllm:{name}"] == 0
    assert (
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="7168"} 1.0'
        in send(sim, "/metrics").body.decode()
    )


def test_a_schema_in_the_request_is_filled(sim: SimServer, send: Send) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}}}
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
    text = send(sim, CHAT, chat("fill", response_format=form)).json()["choices"][0]["message"]["content"]
    assert 1 <= json.loads(text)["score"] <= 5


def test_the_name_of_the_model_is_where_the_router_of_sglang_looks_for_it(sim: SimServer) -> None:
    assert json.loads(sim.get("/server_info"))["served_model_name"] == "sim"
