"""`batch-agent preview`: the requests of a run, printed and not sent."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call
from tests.support.recording_proxy import generations, recording_proxy

from batch_agent import read_request_log
from batch_agent.sim import Script, SimConfig, SimServer

NOWHERE = "vllm://127.0.0.1:9"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text('{"text": "one\\ntwo"}\n{"text": "three"}\n')
    return tmp_path


def test_it_prints_the_requests_to_a_server_that_is_not_there(folder: Path, call: Call) -> None:
    done = call(
        *("preview", "--task", "Say {text}", "--inputs", "in.jsonl", "--backend", NOWHERE, "--model", "m"), cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("First request of 2 agents, to vllm; not sent.\n")
    assert done.stdout.count("POST http://127.0.0.1:9/v1/chat/completions") == 2
    assert '"content": "Say one\n        two"' in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl"]


def test_json_is_one_object_with_the_requests(folder: Path, call: Call) -> None:
    (folder / "batch.toml").write_text(
        f'task = "Say {{text}}"\ninputs = "in.jsonl"\nbackend = "{NOWHERE}"\ncount = 1\n'
    )
    done = call("preview", "--json", cwd=folder)
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    [request] = shown["requests"]
    assert request["body"]["messages"] == [{"role": "user", "content": "Say one\ntwo"}]
    assert (shown["backend"], shown["total"], request["method"]) == ("vllm", 2, "POST")


def test_what_is_wrong_is_said_in_one_line(folder: Path, call: Call) -> None:
    done = call("preview", "--task", "Say {texx}", "--inputs", "in.jsonl", "--backend", NOWHERE, cwd=folder)
    assert done.returncode == 2
    assert "Did you mean {text}?" in done.stderr


@pytest.mark.slow
async def test_run_logs_what_preview_shows_with_the_option_or_the_config_file(
    sim: SimServer, folder: Path, call: Call
) -> None:
    async with recording_proxy(sim.url) as proxy:
        backend = proxy.url.replace("http", "vllm")
        (folder / "batch.toml").write_text(
            f'task = "Say {{text}}"\ninputs = "in.jsonl"\nbackend = "{backend}"\nlog_requests = "logs/toml.jsonl"\n'
        )
        shown = await asyncio.to_thread(call, "preview", "--json", "--model", "sim", cwd=folder)
        for words in (("--out", "a.jsonl"), ("--out", "b.jsonl", "--log-requests", "flag.jsonl")):
            ran = await asyncio.to_thread(
                call, "run", "--model", "sim", "--max-inflight", "1", "--no-dashboard", *words, cwd=folder
            )
            assert ran.returncode == 0, ran.stderr
    previewed = [request["body"] for request in json.loads(shown.stdout)["requests"]]
    assert previewed * 2 == generations(proxy)
    for log in ("logs/toml.jsonl", "flag.jsonl"):
        assert [line["body"] for line in read_request_log(folder / log)] == previewed
