"""The batch server and run-batch as processes that are killed: what was answered is not sent again."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from tests.support.forked_programs import Program, Programs

from batch_agent.sim import SimConfig, SimServer

from .conftest import CHAT, chat_line, jsonl

pytestmark = pytest.mark.slow
LINES, INFLIGHT = 120, 4
SLOW = SimConfig(step_base_ms=30, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0)


@contextmanager
def server(programs: Programs, folder: Path, sim: SimServer) -> Iterator[tuple[Program, OpenAI]]:
    options = ["--backend", f"vllm://127.0.0.1:{sim.port}", "--folder", "batches", "--port", "0"]
    started = programs.start_command("serve-batches", *options, "--max-inflight", str(INFLIGHT), cwd=folder)
    wait_until(lambda: "\n" in started.stderr.read_text())
    found = re.search(r"http://\S+/v1", started.stderr.read_text())
    assert found, started.stderr.read_text()
    with OpenAI(base_url=found[0], api_key="none") as client:
        yield started, client
    started.end()


def wait_until(is_done: Any) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_completed(client: OpenAI, batch_id: str, wanted: int) -> bool:
    counts = client.batches.retrieve(batch_id).request_counts
    return counts is not None and counts.completed >= wanted


def lines() -> list[dict[str, Any]]:
    return [chat_line(f"line-{number}", max_tokens=4) for number in range(LINES)]


@pytest.mark.parametrize("kills", [1, 3])
def test_a_killed_server_sends_no_answered_line_again(tmp_path: Path, kills: int, programs: Programs) -> None:
    with SimServer(SLOW) as sim:
        batch_id = ""
        for kill in range(kills):
            with server(programs, tmp_path, sim) as (child, client):
                if not batch_id:
                    file = client.files.create(file=("in.jsonl", jsonl(*lines())), purpose="batch")
                    batch_id = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id
                wanted = (kill + 1) * LINES // (kills + 2)
                wait_until(partial(has_completed, client, batch_id, wanted))
                child.end()
        with server(programs, tmp_path, sim) as (_, client):
            wait_until(lambda: client.batches.retrieve(batch_id).status == "completed")
            batch = client.batches.retrieve(batch_id)
            assert batch.output_file_id is not None
            output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        assert [line["custom_id"] for line in output] == [line["custom_id"] for line in lines()]
        sent = sim.billed("standard")["requests"]
        # Those in flight at a kill, and responses that were not committed yet, for which slots were used again already.
        assert LINES <= sent <= LINES + kills * 2 * INFLIGHT


def run_batch(sim: SimServer) -> list[str]:
    options = ["--backend", f"vllm://127.0.0.1:{sim.port}", "--max-inflight", str(INFLIGHT)]
    return ["run-batch", "in.jsonl", "-o", "out.jsonl", *options]


def test_a_killed_run_batch_sends_no_answered_line_again(tmp_path: Path, programs: Programs) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*lines()))
    with SimServer(SLOW) as sim:
        killed = programs.start_command(*run_batch(sim), cwd=tmp_path)
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") > LINES // 3)
        killed.end()
        again = programs.call(*run_batch(sim), cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert LINES <= sim.billed("standard")["requests"] <= LINES + 2 * INFLIGHT
    written = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
    assert sorted(written) == sorted(line["custom_id"] for line in lines())


def test_a_signal_stops_run_batch_and_the_same_command_continues(tmp_path: Path, programs: Programs) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*lines()))
    with SimServer(SLOW) as sim:
        stopped = programs.start_command(*run_batch(sim), cwd=tmp_path)
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") > 4)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait() == 143
        assert "the same command continues" in stopped.stderr.read_text()
        again = programs.call(*run_batch(sim), cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert f"{LINES} of {LINES} lines succeeded" in again.stderr
