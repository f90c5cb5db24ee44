"""batch-agent run-batch and serve-batches, as commands."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call

from batch_agent.sim import SimConfig, SimServer


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        yield f"vllm://127.0.0.1:{sim.port}"


def write(path: Path, *texts: str, **body: Any) -> None:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **body},
        }
        for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_run_batch_says_what_it_did_and_continues(tmp_path: Path, call: Call, backend: str) -> None:
    write(tmp_path / "in.jsonl", "one", '[[sim: {"fault": "400", "times": 1}]]')
    command = ("run-batch", "in.jsonl", "-o", "out.jsonl", "--backend", backend)
    first = call(*command, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (1, "")
    assert first.stderr.splitlines()[-2:] == [
        "1 of 2 lines succeeded. Output: out.jsonl",
        "To retry the failed lines, run the same command again.",
    ]
    second = call(*command, cwd=tmp_path)
    assert second.returncode == 0
    assert "2 of 2 lines succeeded, 1 of them in an earlier run. Output: out.jsonl" in second.stderr


def test_run_batch_lets_lines_use_the_tools_that_it_is_given(tmp_path: Path, call: Call, backend: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "note.txt").write_text("42")
    script = '[[sim: [{"calls": [{"name": "read_file", "arguments": {"path": "note.txt"}}]}, {"text": "42"}]]]'
    tools = [{"type": "function", "function": {"name": "read_file"}}]
    write(tmp_path / "in.jsonl", script, tools=tools, max_tokens=100)
    command = ("run-batch", "in.jsonl", "-o", "out.jsonl", "--backend", backend, "--tools", "read_file:docs")
    done = call(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    response = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]
    assert response["choices"][0]["message"]["content"] == "42"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run-batch", "none.jsonl", "-o", "out.jsonl"), "'none.jsonl' cannot be read"),
        (("run-batch", "bad.jsonl", "-o", "out.jsonl"), "line 1: This line is not parseable"),
        (("run-batch", "bad.jsonl"), "--out"),
        (("run-batch", "bad.jsonl", "-o", "out.jsonl", "--max-retries", "-1"), "max_retries"),
        (("run-batch", "in.jsonl", "-o", "out.jsonl", "--tools", "none:tool"), "--tools"),
        (("run-batch", "in.jsonl", "-o", "out.jsonl", "--backend", "vllm://127.0.0.1:9"), "Cannot connect"),
        (("serve-batches", "--host", "0.0.0.0"), "set an API key"),
        (("serve-batches", "--port", "70000"), "--port"),
        (("serve-batches", "--max-lines", "0"), "--max-lines"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_explained_in_one_line(tmp_path: Path, call: Call, arguments: tuple[str, ...], words: str) -> None:
    write(tmp_path / "in.jsonl", "one")
    (tmp_path / "bad.jsonl").write_text("hello\n")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path, call: Call, backend: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = call("serve-batches", "--port", port, "--backend", backend, cwd=tmp_path)
    assert done.returncode == 2
    assert f"Cannot listen on 127.0.0.1, port {port}: Address already in use" in done.stderr
