"""Many prompts in one request, as vLLM takes them."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from batch_agent.sim import SimConfig, SimServer

from .conftest import Send, raw, until

COMPLETIONS = "/v1/completions"
PROMPTS = ["first prompt", "second", "the third of them"]
USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def narrow() -> Iterator[SimServer]:
    """A server that takes at most three prompts in a list."""
    with SimServer(SimConfig(zero_latency=True, max_list_prompts=3)) as server:
        yield server


def ids_of(sim: SimServer, send: Send, text: str) -> list[int]:
    tokens: list[int] = send(sim, "/tokenize", {"prompt": text}).json()["tokens"]
    return tokens


def streamed(events: list[Any]) -> dict[int, dict[str, Any]]:
    """Text, finish reasons and last usage of each prompt of a streamed list."""
    seen: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            entry = seen.setdefault(choice["index"], {"text": "", "finish_reasons": [], "usage": []})
            assert not entry["finish_reasons"], "an event after the end"
            entry["text"] += choice["text"]
            entry["finish_reasons"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            entry["usage"] += [event["usage"]] if "usage" in event else []
    return seen


@pytest.mark.parametrize("as_ids", [False, True])
def test_each_prompt_of_a_list_gets_the_answer_it_gets_alone(sim: SimServer, send: Send, as_ids: bool) -> None:
    prompts: list[Any] = [ids_of(sim, send, text) for text in PROMPTS] if as_ids else list(PROMPTS)
    alone = [send(sim, COMPLETIONS, {"prompt": prompt, "max_tokens": 9}).json() for prompt in prompts]
    together = send(sim, COMPLETIONS, {"prompt": prompts, "max_tokens": 9}).json()
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [each["choices"][0]["text"] for each in alone]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][count] == sum(each["usage"][count] for each in alone)


def test_answers_of_one_list_end_each_for_its_own_reason(sim: SimServer, send: Send) -> None:
    prompts = ['[[sim: {"text": "short"}]]', "long"]
    choices = send(sim, COMPLETIONS, {"prompt": prompts, "max_tokens": 20}).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "length"]
    assert choices[0]["text"] == "short"


@pytest.mark.parametrize("server", ["sim", "timed"])
def test_a_streamed_list_interleaves_and_adds_up_to_the_plain_one(
    server: str, send: Send, request: pytest.FixtureRequest
) -> None:
    sim: SimServer = request.getfixturevalue(server)
    body = {"prompt": ['[[sim: {"text": "short"}]]', "long", "longer"], "max_tokens": 40}
    plain = send(sim, COMPLETIONS, body).json()
    *events, usage = send(sim, COMPLETIONS, {**body, "stream": True, "stream_options": USAGE}).events()
    seen = streamed(events)
    for choice in plain["choices"]:
        assert seen[choice["index"]]["text"] == choice["text"]
        assert seen[choice["index"]]["finish_reasons"] == [choice["finish_reason"]]
    order = [event["choices"][0]["index"] for event in events]
    assert order != sorted(order)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == plain["usage"]["total_tokens"]
    assert "usage" not in events[-1]


def test_the_last_text_and_the_finish_reason_come_in_one_event(timed: SimServer, send: Send) -> None:
    body = {"prompt": "one event", "max_tokens": 6, "stream": True}
    choices = [event["choices"][0] for event in send(timed, COMPLETIONS, body).events()]
    assert [(len(choice["text"]), choice["finish_reason"]) for choice in choices] == [
        (4, None),
        (16, None),
        (4, "length"),
    ]


def test_continuous_usage_is_that_of_one_prompt(timed: SimServer, send: Send) -> None:
    body = {"prompt": ["one", "the other, which is longer"], "max_tokens": 9, "stream": True}
    options = {**USAGE, "continuous_usage_stats": True}
    *events, last = send(timed, COMPLETIONS, {**body, "stream_options": options}).events()
    seen = streamed(events)
    tokens = [len(ids_of(timed, send, prompt)) for prompt in body["prompt"]]  # type: ignore[attr-defined]
    for index, prompt_tokens in enumerate(tokens):
        usages = seen[index]["usage"]
        assert {usage["prompt_tokens"] for usage in usages} == {prompt_tokens}
        assert [usage["completion_tokens"] for usage in usages] == [1, 5, 9]
        assert usages[-1]["total_tokens"] == prompt_tokens + 9
    assert last["usage"]["total_tokens"] == sum(tokens) + 18


def test_a_chat_stream_counts_continuously_too(sim: SimServer, send: Send) -> None:
    body = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 3, "stream": True}
    options = {**USAGE, "continuous_usage_stats": True}
    *events, last = send(sim, "/v1/chat/completions", {**body, "stream_options": options}).events()
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]
    assert events[-1]["usage"]["total_tokens"] == last["usage"]["total_tokens"]


def test_without_include_usage_nothing_is_counted(sim: SimServer, send: Send) -> None:
    options = {"continuous_usage_stats": True}
    events = send(sim, COMPLETIONS, {"prompt": PROMPTS, "stream": True, "stream_options": options}).events()
    assert all(event["choices"] and "usage" not in event for event in events)


def test_the_cached_tokens_of_a_list_are_those_of_one_of_its_prompts(send: Send) -> None:
    known, new = "known " * 40, "new " * 60
    with SimServer(SimConfig(zero_latency=True)) as sim:
        send(sim, COMPLETIONS, {"prompt": known})

        def cached(*prompts: str) -> int:
            usage = send(sim, COMPLETIONS, {"prompt": [*prompts]}).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        def cached_in_stream(*prompts: str) -> int:
            body = {"prompt": [*prompts], "stream": True, "stream_options": USAGE}
            usage = send(sim, COMPLETIONS, body).events()[-1]["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached(known, new) == 0
        assert cached(new + "!", known) == 48
        assert cached_in_stream(known, "unheard " * 40) == 48
        assert cached_in_stream("unseen " * 40, known) == 0


def test_every_prompt_is_a_sequence_of_its_own(sim: SimServer, send: Send) -> None:
    before = sim.metrics()
    send(sim, COMPLETIONS, {"prompt": PROMPTS, "max_tokens": 5})
    after = sim.metrics()
    assert after["vllm:request_success_total"] - before["vllm:request_success_total"] == 3
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 15
    assert after["sim:http_requests_total"] - before["sim:http_requests_total"] == 1


def test_a_client_that_leaves_ends_all_prompts_of_its_list(timed: SimServer) -> None:
    before = timed.metrics()
    body = {"prompt": [f"leaving {index}" for index in range(4)], "ignore_eos": True, "max_tokens": 200}
    with socket.create_connection(("127.0.0.1", timed.port), timeout=60) as client:
        client.sendall(raw({**body, "stream": True}, COMPLETIONS))
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert timed.metrics()["vllm:num_requests_running"] == 4
    after = until(timed, "sim:requests_aborted_total", before["sim:requests_aborted_total"] + 4)
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_one_prompt_that_is_too_long_refuses_the_whole_list(sim: SimServer, send: Send, stream: bool) -> None:
    before = sim.metrics()
    answer = send(sim, COMPLETIONS, {"prompt": ["fine", "x" * 10_000, ""], "stream": stream})
    assert answer.status == 400
    assert answer.json()["error"]["message"].startswith("This model's maximum context length is 2048 tokens.")
    assert sim.metrics()["vllm:request_success_total"] == before["vllm:request_success_total"]


def test_one_empty_prompt_refuses_the_whole_list_and_inside_a_stream(sim: SimServer, send: Send) -> None:
    for prompts in (["fine", ""], [[1, 2], []]):
        plain = send(sim, COMPLETIONS, {"prompt": prompts})
        assert plain.status == 400
        streamed = send(sim, COMPLETIONS, {"prompt": prompts, "stream": True})
        assert streamed.status == 200
        assert streamed.events() == [plain.json()]
        assert plain.json()["error"]["message"] == "The decoder prompt cannot be empty"
        assert plain.json()["error"]["code"] == 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": []}, "at least one prompt"),
        ({"prompt": ["text", [1, 2]]}, "not both"),
        ({"prompt": ["a", 1]}, "not both"),
        ({"prompt": ["a", "b", "c", "d"]}, "prompt list length 4 exceeds the maximum allowed count of 3."),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "n": 2}, "n must be 1"),
        ({"prompt": "a", "stream_options": USAGE}, "Stream options can only be defined when `stream=True`."),
        ({"prompt": "a", "stream": True, "stream_options": "all"}, "stream_options must be an object"),
    ],
    ids=str,
)
def test_a_list_that_is_none_is_refused(narrow: SimServer, send: Send, body: dict[str, Any], words: str) -> None:
    answer = send(narrow, COMPLETIONS, body)
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]


def test_a_server_without_lists_takes_one_prompt_only(send: Send) -> None:
    with SimServer(SimConfig(zero_latency=True, list_prompts=False)) as sim:
        assert send(sim, COMPLETIONS, {"prompt": ["a", "b"]}).status == 400
        assert send(sim, COMPLETIONS, {"prompt": [[1], [2]]}).status == 400
        assert send(sim, COMPLETIONS, {"prompt": ["a"]}).status == 200
        assert send(sim, COMPLETIONS, {"prompt": [1, 2]}).status == 200
