import http.client
import json
import socket
import time
from typing import Any

import pytest

from batch_agent.sim import FaultRates, SimConfig, SimServer

from .conftest import Send, raw, until

CHAT = "/v1/chat/completions"


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_a_connection_serves_many_requests_also_when_they_come_at_once(sim: SimServer) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.sendall(raw(chat('[[sim: {"text": "one"}]]')) * 3)
        received = b""
        while received.count(b'"content":"one"') < 3:
            received += client.recv(65536)
        assert received.count(b"HTTP/1.1 200 OK") == 3


def test_a_client_that_waits_for_100_gets_it(sim: SimServer) -> None:
    head, _, body = raw(chat("hi")).partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_bytes_that_are_no_http_end_the_connection_with_a_400(sim: SimServer) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.sendall(b"hello there\r\n\r\n")
        received = b""
        while piece := client.recv(1000):
            received += piece
        assert received.startswith(b"HTTP/1.1 400")


def test_a_status_fault_fails_the_ordered_attempts_and_then_works(sim: SimServer, send: Send) -> None:
    order = '[[sim: {"fault": "429", "times": 2, "retry_after_s": 0.25, "text": "at last"}]]'
    answers = [send(sim, CHAT, chat(order)) for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "0.25"
    assert answers[2].json()["choices"][0]["message"]["content"] == "at last"
    assert send(sim, CHAT, chat('[[sim: {"fault": "503"}]]')).status == 503


def test_a_reset_breaks_the_connection(sim: SimServer, send: Send) -> None:
    for stream in (False, True):
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            send(sim, CHAT, chat('[[sim: {"fault": "reset"}]]', stream=stream))


def test_a_truncated_answer_is_shorter_than_it_promised(sim: SimServer, send: Send) -> None:
    with pytest.raises(http.client.IncompleteRead):
        send(sim, CHAT, chat('[[sim: {"fault": "truncated"}]]'))


def test_a_truncated_stream_ends_in_order_but_without_an_end(sim: SimServer, send: Send) -> None:
    body = send(sim, CHAT, chat('[[sim: {"fault": "truncated"}]]', stream=True)).body
    assert body.count(b"data: ") == 1 + 32
    assert b"[DONE]" not in body
    assert b'"finish_reason":"stop"' not in body
    both = {"prompt": ["a", "b"], "stream": True, "max_tokens": 8}
    assert b"[DONE]" in send(sim, "/v1/completions", both).body


def test_garbage_is_not_json(sim: SimServer, send: Send) -> None:
    with pytest.raises(json.JSONDecodeError):
        send(sim, CHAT, chat('[[sim: {"fault": "garbage"}]]')).json()
    with pytest.raises(json.JSONDecodeError):
        send(sim, CHAT, chat('[[sim: {"fault": "garbage"}]]', stream=True)).events()


def test_a_stall_comes_before_a_plain_answer_and_inside_a_stream(sim: SimServer, send: Send) -> None:
    order = '[[sim: {"fault": "stall", "stall_s": 0.1, "text": "late"}]]'
    started = time.monotonic()
    assert send(sim, CHAT, chat(order)).json()["choices"][0]["message"]["content"] == "late"
    assert time.monotonic() - started >= 0.1
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.sendall(raw(chat(order.replace("0.1", "600"), stream=True)))
        opening = client.recv(65536)
        assert b'"role":"assistant"' in opening
        assert b"late" not in opening
    assert b"late" in send(sim, CHAT, chat(order, stream=True)).body
    assert time.monotonic() - started >= 0.2


def test_a_client_that_leaves_during_a_stall_is_forgotten(timed: SimServer) -> None:
    before = timed.metrics()
    with socket.create_connection(("127.0.0.1", timed.port), timeout=60) as client:
        client.sendall(raw(chat('[[sim: {"fault": "stall", "stall_s": 0.05}]]')))
    time.sleep(0.1)
    assert timed.metrics()["vllm:request_success_total"] == before["vllm:request_success_total"]


def test_faults_come_by_chance_too(send: Send) -> None:
    with SimServer(SimConfig(zero_latency=True, faults=FaultRates(error_500=0.5))) as sim:
        statuses = [send(sim, CHAT, chat("hi")).status for _ in range(40)]
    assert set(statuses) == {200, 500}


def test_a_client_that_leaves_frees_its_blocks() -> None:
    with SimServer(SimConfig(num_blocks=64, step_base_ms=100)) as slow:
        with socket.create_connection(("127.0.0.1", slow.port), timeout=60) as client:
            client.sendall(raw(chat("leaving", ignore_eos=True, max_tokens=900, stream=True)))
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            running = until(slow, "vllm:num_requests_running", 1)
            assert running["vllm:kv_cache_usage_perc"] > 0
        after = until(slow, "sim:requests_aborted_total", 1)
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0


def test_a_timed_answer_takes_its_steps_and_streams_in_chunks(timed: SimServer, send: Send) -> None:
    started = time.monotonic()
    events = send(timed, CHAT, chat("steps", max_tokens=30, ignore_eos=True, stream=True)).events()
    assert time.monotonic() - started >= 30 * 0.002
    pieces = [event["choices"][0]["delta"].get("content") for event in events]
    assert [len(piece) for piece in pieces if piece] == [4] + [16] * 7 + [4]


def test_a_cold_burst_with_one_prefix_computes_it_once(timed: SimServer) -> None:
    prefix = "one prefix for all " * 20
    connections = [http.client.HTTPConnection("127.0.0.1", timed.port, timeout=60) for _ in range(8)]
    for index, connection in enumerate(connections):
        connection.request("POST", CHAT, json.dumps(chat(f"{prefix} {index}", max_tokens=2)))
    usages = [json.loads(connection.getresponse().read())["usage"] for connection in connections]
    for connection in connections:
        connection.close()
    cached = sorted(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached == [0] + [96] * 7
