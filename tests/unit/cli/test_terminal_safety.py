"""What a server, a model or a checkpoint says, on the terminal of whoever runs a command."""

import json
import os
import pty
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.forked_programs import PROGRAM, Call

from batch_agent import BatchAgent
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say

EVIL = "[red]\x1b]52;c;cm0gLXJm\x07\x1b]0;pwned\x07\x1b[2J\x9b31m\u202etxt.exe\u2066[/red]"
STEERS = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "\u2066")


class _Evil(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "evil\x1b]0;x\x07", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(400, {"error": {"message": EVIL}})

    def _answer(self, status: int, answer: object) -> None:
        body = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def evil_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def steering(text: str) -> list[str]:
    return [each for each in STEERS if each in text]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--tools", "http_get"), ("--reduce", "Sum up.")])
def test_escape_sequences_of_a_server_do_not_reach_the_terminal(
    tmp_path: Path, evil_url: str, call: Call, words: tuple[str, ...]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "a"}\n')
    asks = ("--task", "Who is {name}?", "--inputs", "in.jsonl", "--backend", evil_url)
    done = call("run", *asks, *words, cwd=tmp_path)
    assert "txt.exe" in done.stderr
    assert steering(done.stderr + done.stdout) == []
    for others in (("doctor", evil_url), ("plan", *asks, "--canary", "1"), ("lint", *asks, "--exact")):
        done = call(*others, cwd=tmp_path)
        assert steering(done.stderr + done.stdout) == []


@pytest.mark.slow
async def test_escape_sequences_of_a_model_do_not_reach_the_terminal_but_are_in_files(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    backend = ScriptedBackend(lambda request: say(f"answer {EVIL}"))
    await BatchAgent.run(task="{it}", inputs=[f"a {EVIL}"], backend=backend, checkpoint_dir=folder)
    exact = subprocess.run([*PROGRAM, "export", str(folder)], capture_output=True, timeout=60, check=True).stdout
    assert json.loads(exact)["output"] == f"answer {EVIL}"
    for words in (
        ("export", str(folder)),
        ("export", str(folder), "--format", "csv"),
        ("inspect", str(folder)),
        ("inspect", str(folder), "--agent", "0"),
    ):
        shown = on_a_terminal(*words)
        assert "txt.exe" in shown or words == ("inspect", str(folder))
        assert steering(shown) == []


def on_a_terminal(*words: str) -> str:
    """What a command writes to a real terminal."""
    mine, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(mine, 4096):
                written += piece
        except OSError:  # how the end of a terminal is told
            pass
        assert program.wait(60) == 0, written
    os.close(mine)
    return written.decode()


def test_a_run_whose_caller_has_closed_the_standard_streams_sends_nothing_of_them_to_the_server(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"t": "a"}\n')
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=0)) as sim:
        options = ["--task", "Say {t}", "--inputs", "in.jsonl", "--out", "out.jsonl", "--backend", sim.url]
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *PROGRAM, "run", *options],
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["ok"]
