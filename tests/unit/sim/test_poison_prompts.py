"""Prompts that spoil the whole request they come in."""

import http.client
import json
import socket

import pytest

from batch_agent.sim import SimServer

from .conftest import Send, raw

COMPLETIONS = "/v1/completions"


def poisoned(order: str) -> list[str]:
    return ["fine", f"[[sim: {order}]] is the second", "fine too"]


def receive_all(client: socket.socket, received: bytearray) -> None:
    while piece := client.recv(65536):
        received += piece


@pytest.mark.parametrize(("status", "kind"), [(400, "BadRequestError"), (500, "InternalServerError")])
@pytest.mark.parametrize("stream", [False, True])
def test_a_status_is_for_the_whole_list(sim: SimServer, send: Send, status: int, kind: str, stream: bool) -> None:
    body = {"prompt": poisoned(f'{{"fault": "{status}"}}'), "stream": stream}
    answer = send(sim, COMPLETIONS, body)
    assert answer.status == status
    assert answer.json()["error"]["type"] == kind
    assert send(sim, COMPLETIONS, {**body, "prompt": ["fine", "fine too"]}).status == 200


def test_a_poison_that_wears_off_does_so_in_any_company(sim: SimServer, send: Send) -> None:
    poison = '[[sim: {"fault": "500", "times": 2, "text": "cured"}]]'
    assert send(sim, COMPLETIONS, {"prompt": ["a", poison]}).status == 500
    assert send(sim, COMPLETIONS, {"prompt": [poison, "b", "c"]}).status == 500
    choices = send(sim, COMPLETIONS, {"prompt": [poison, "a"]}).json()["choices"]
    assert choices[0]["text"] == "cured"


@pytest.mark.parametrize("server", ["sim", "timed"])
def test_a_reset_comes_after_tokens_of_the_list_were_sent(server: str, request: pytest.FixtureRequest) -> None:
    sim: SimServer = request.getfixturevalue(server)
    body = {"prompt": poisoned('{"fault": "reset"}'), "max_tokens": 20, "stream": True}
    received = bytearray()
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.sendall(raw(body, COMPLETIONS))
        with pytest.raises(ConnectionResetError):
            receive_all(client, received)
    for index in range(3):
        assert received.count(b'"index":%d,' % index) >= 2
    assert b"[DONE]" not in received
    assert b'"finish_reason":"' not in received


def test_a_reset_frees_what_the_list_held(timed: SimServer, send: Send) -> None:
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        send(timed, COMPLETIONS, {"prompt": poisoned('{"fault": "reset"}'), "max_tokens": 20, "stream": True})
    metrics = timed.metrics()
    assert metrics["vllm:num_requests_running"] == metrics["vllm:kv_cache_usage_perc"] == 0


def test_a_poison_works_as_token_ids_too(sim: SimServer, send: Send) -> None:
    tokens = send(sim, "/tokenize", {"prompt": '[[sim: {"fault": "503"}]]'}).json()["tokens"]
    assert send(sim, COMPLETIONS, {"prompt": [[1, 2], tokens]}).status == 503


def test_a_directive_that_cannot_be_read_refuses_the_list(sim: SimServer, send: Send) -> None:
    answer = send(sim, COMPLETIONS, {"prompt": poisoned('{"falt": "400"}')})
    assert answer.status == 400
    assert "directive" in json.loads(answer.body)["error"]["message"]
