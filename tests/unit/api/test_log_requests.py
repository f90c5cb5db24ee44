"""`log_requests=` and the DEBUG log: each request to the model and the raw response."""

import base64
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bedrock_server import TOKEN, Heard, Said, bedrock_server, use_keys
from tests.support.loopback_servers import Line, RawRequest, raw_server
from tests.support.recording_proxy import generations, recording_proxy

from batch_agent import BatchAgent, Flow, SpecError, Tool, read_request_log
from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Finished, Request, TextDelta, Usage
from batch_agent.sim import SimServer

KEY = "sk-very-secret-0123456789"
MODELS = json.dumps({"data": [{"id": "m"}]}).encode()


@Tool.define(effect="read")
async def look_up(name: str) -> str:
    """Look a name up."""
    return f"found {name}"


def directive(**fields: Any) -> str:
    return f"Review {{it}} [[sim: {json.dumps(fields)}]]".replace("[[sim: {", "[[sim: {{").replace("}]]", "}}]]")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return list(read_request_log(path))


async def test_an_ordinary_line_is_written_by_orjson(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.core.json.json", None)  # for what orjson refuses: it takes ten times as long
    log = tmp_path / "requests.jsonl"
    await BatchAgent.run(task="{it}", inputs=["a"], backend=sim.url, model="sim", log_requests=log, progress=False)
    assert [line["status"] for line in lines_of(log)] == [200]


async def test_a_line_holds_the_request_as_the_server_received_it_and_the_raw_response(
    sim: SimServer, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "requests.jsonl"
    async with recording_proxy(sim.url) as proxy:
        results = await BatchAgent.run(
            task="Review {it}",
            inputs=["a", "b"],
            tools=[look_up],
            backend=proxy.url.replace("http", "vllm"),
            model="sim",
            system_prompt="Be brief.",
            log_requests=log,
            progress=False,
        )
    lines = lines_of(log)
    by_body = {json.dumps(line["body"], sort_keys=True) for line in lines}
    assert by_body == {json.dumps(body, sort_keys=True) for body in generations(proxy)}
    of_agents = [line for line in lines if line["agent"]]
    assert sorted((line["index"], line["turn"], line["attempt"]) for line in of_agents) == [
        (0, 1, 1),
        (0, 2, 1),
        (1, 1, 1),
        (1, 2, 1),
    ]
    assert {line["agent"] for line in of_agents} == {result.key for result in results}
    assert [line["index"] for line in lines if not line["agent"]] == [None]  # the trial request for tools
    for line in of_agents:
        assert (line["method"], line["status"], line["error"], line["model"]) == ("POST", 200, None, "sim")
        assert line["url"] == f"{proxy.url}/v1/chat/completions"
        assert line["response"]["choices"][0]["message"]["role"] == "assistant"
        assert line["usage"]["input"] == line["response"]["usage"]["prompt_tokens"]
        assert line["seconds"] >= 0
        assert line["at"] > 1_600_000_000


async def test_a_streamed_response_is_kept_as_it_was_received(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    await BatchAgent.run(
        task="Review {it}", inputs=["a"], backend=sim.url, streaming=True, log_requests=log, progress=False
    )
    [line] = lines_of(log)
    assert line["response"].startswith("data: {")
    assert line["response"].endswith("data: [DONE]\n\n")


async def test_each_retry_has_a_line_with_its_status_and_its_attempt(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    task = directive(fault="500", times=2, text="ok")
    [result] = await BatchAgent.run(
        task=task, inputs=["retries"], backend=sim.url, backoff=0.01, log_requests=log, progress=False
    )
    assert result.ok
    lines = lines_of(log)
    assert [(line["attempt"], line["status"]) for line in lines] == [(1, 500), (2, 500), (3, 200)]
    assert lines[0]["error"].startswith("server")
    assert lines[0]["response"]["error"]
    assert lines[2]["error"] is None


async def test_a_connection_that_drops_and_a_timeout_have_lines_without_a_status(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"

    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, MODELS)
        elif b"drop" in request.body:
            line.hang_up()
        else:
            await line.gone()

    async with raw_server(answer) as server:
        await BatchAgent.run(
            task="{it}",
            inputs=["drop", "wait"],
            backend=server.url,
            max_retries=0,
            timeout_per_turn=0.2,
            log_requests=log,
            progress=False,
        )
    dropped, waited = sorted(lines_of(log), key=lambda line: line["index"])
    assert (dropped["status"], dropped["response"], waited["status"]) == (None, None, None)
    assert dropped["error"]
    assert waited["error"] == "cancelled, by a timeout or by the end of the run"


async def test_keys_are_masked_in_headers_urls_and_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("VLLM_API_KEY", KEY)

    async def answer(request: RawRequest, line: Line) -> None:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        await (line.reply(200, MODELS) if request.method == "GET" else line.say(f"Your key is {KEY}"))

    async with raw_server(answer) as server:
        [result] = await BatchAgent.run(
            task="{it}",
            inputs=[f"My key is {KEY}"],
            backend=server.url.replace("http", "vllm"),
            log_requests=log,
            progress=False,
        )
    assert result.text == f"Your key is {KEY}"
    assert KEY not in log.read_text()
    [line] = lines_of(log)
    assert line["headers"]["Authorization"] == "Bearer ***"
    assert line["body"]["messages"][0]["content"] == "My key is ***"
    assert line["response"]["choices"][0]["message"]["content"] == "Your key is ***"


async def test_signatures_and_session_tokens_are_masked_and_a_binary_response_is_base64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "requests.jsonl"

    def answer(heard: Heard) -> Said:
        return Said([{"text": "fine"}])

    async with bedrock_server(answer) as server:
        use_keys(monkeypatch, server.url, token=TOKEN)
        [result] = await BatchAgent.run(
            task="{it}",
            inputs=["a"],
            backend="bedrock://us-east-1/amazon.nova-lite-v1:0",
            streaming=True,
            log_requests=log,
            progress=False,
        )
    assert result.text == "fine"
    [line] = lines_of(log)
    assert line["headers"]["Authorization"] == "AWS4-HMAC-SHA256 ***"
    assert line["headers"]["X-Amz-Security-Token"] == "***"
    assert TOKEN not in log.read_text()
    assert b"fi" in base64.b64decode(line["response"]["base64"])


async def test_a_short_key_is_not_looked_for_in_texts(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("VLLM_API_KEY", "EMPTY")
    backend = sim.url.replace("http", "vllm")
    await BatchAgent.run(task="Is {it} EMPTY?", inputs=["a"], backend=backend, log_requests=log, progress=False)
    [line] = lines_of(log)
    assert line["headers"]["Authorization"] == "Bearer ***"
    assert line["body"]["messages"][0]["content"] == "Is a EMPTY?"


async def test_the_file_is_private_and_appended_to_also_behind_a_torn_line(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"

    async def run(text: str) -> None:
        await BatchAgent.run(task="{it}", inputs=[text], backend=sim.url, log_requests=log, progress=False)

    await run("one")
    await run("two")
    assert log.stat().st_mode & 0o777 == 0o600
    os.truncate(log, log.stat().st_size - 10)
    await run("three")
    assert [line["body"]["messages"][0]["content"] for line in lines_of(log)] == ["one", "three"]


async def test_a_full_disk_is_reported_once_and_the_run_goes_on(
    sim: SimServer, capsys: pytest.CaptureFixture[str]
) -> None:
    results = await BatchAgent.run(
        task="Say {it}", inputs=list("abcd"), backend=sim.url, log_requests="/dev/full", progress=False
    )
    assert len(results.failed) == 0
    warning = "log_requests='/dev/full' cannot be written: No space left on device."
    assert capsys.readouterr().err.count(warning) == 1


async def test_a_path_that_cannot_be_written_is_refused_before_anything_is_sent(sim: SimServer, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"log_requests='.*' cannot be written: Is a directory"):
        await BatchAgent.run(task="{it}", inputs=["a"], backend=sim.url, log_requests=tmp_path, progress=False)


_KILLED = """
import sys
from batch_agent import BatchAgent
BatchAgent.run_sync(task="Say {it}", inputs=[str(each) for each in range(10_000)], backend=sys.argv[1],
    max_inflight=4, log_requests=sys.argv[2], progress=False)
"""


async def test_a_killed_process_leaves_lines_that_can_be_read(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    process = subprocess.Popen([sys.executable, "-c", _KILLED, sim.url, str(log)])
    try:
        ends = time.monotonic() + 60
        while time.monotonic() < ends and (not log.exists() or log.stat().st_size < 20_000):
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    lines = lines_of(log)
    assert len(lines) > 5
    assert {line["status"] for line in lines} == {200}


async def test_the_stages_of_a_flow_share_a_file(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    flow = Flow(["a", "b"], backend=sim.url, log_requests=log).map("first", task="Say {input}")
    await flow.map("second", task="Repeat {first}").run()
    lines = lines_of(log)
    assert sorted((line["stage"], line["index"]) for line in lines) == [
        ("first", 0),
        ("first", 1),
        ("second", 0),
        ("second", 1),
    ]
    for line in lines:
        assert line["body"]["messages"][-1]["content"].startswith("Say" if line["stage"] == "first" else "Repeat")


async def test_the_stages_of_a_flow_are_told_apart_on_a_backend_of_the_caller_with_a_budget(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    options: dict[str, Any] = {"backend": OwnBackend(), "log_requests": log, "max_total_tokens": 100_000}
    await Flow(["a"], **options).map("first", task="Say {input}").map("second", task="Repeat {first}").run()
    assert [(line["stage"], line["index"]) for line in lines_of(log)] == [("first", 0), ("second", 0)]


async def test_a_run_of_its_own_has_no_stage(sim: SimServer, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    await BatchAgent.run(task="Say {it}", inputs=["a"], backend=sim.url, log_requests=log, progress=False)
    assert [line["stage"] for line in lines_of(log)] == [None]


class OwnBackend:
    """A backend of the caller."""

    traits = Traits("own", "own-model", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        async def deltas() -> AsyncIterator[Delta]:
            if "refuse" in str(request.messages):
                raise BackendError(ErrorKind.BAD_REQUEST, "No.")
            yield TextDelta("fine")
            yield Finished("stop", Usage(3, 0, 1))

        yield deltas()

    async def leave(self, agent: str) -> None: ...

    async def aclose(self) -> None: ...


async def test_the_requests_to_a_backend_of_the_caller_are_logged_without_http(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    backend = OwnBackend()
    results = await BatchAgent.run(
        task="{it}", inputs=["hello", "refuse"], backend=backend, log_requests=log, max_retries=0, progress=False
    )
    assert [result.ok for result in results] == [True, False]
    fine, refused = sorted(lines_of(log), key=lambda line: line["index"])
    assert (fine["method"], fine["url"], fine["status"]) == ("", "", None)
    assert fine["body"]["messages"] == [{"role": "user", "content": "hello"}]
    assert fine["response"] == {"text": "fine", "calls": [], "finish": "stop"}
    assert fine["usage"] == {"input": 3, "cached": 0, "output": 1}
    assert refused["error"] == "BackendError: No."


async def test_debug_has_a_line_for_each_request(sim: SimServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "batch_agent")
    task = directive(fault="500", times=1, text="ok")
    await BatchAgent.run(task=task, inputs=["debug"], backend=sim.url, backoff=0.01, progress=False)
    first, second = [each.getMessage() for each in caplog.records if each.getMessage().startswith("POST")]
    assert first.startswith(f"POST {sim.url}/v1/chat/completions model=sim 500 ")
    assert ", agent 0 turn 1: server: " in first
    assert " 200 " in second
    assert "tokens in (" in second
    assert second.endswith(", agent 0 turn 1 attempt 2")


async def test_nothing_is_recorded_where_nothing_is_logged(sim: SimServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "batch_agent")
    code = f"""
import sys
from batch_agent import BatchAgent
BatchAgent.run_sync(task="Say {{it}}", inputs=["a"], backend={sim.url!r}, progress=False)
print([name for name in sys.modules if name.endswith(("request_log", "exchange_recorder", "observed_backend"))])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
