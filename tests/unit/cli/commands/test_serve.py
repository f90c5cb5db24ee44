"""A run in the browser: real HTTP on this machine, and a real run that goes on in another process."""

import asyncio
import gzip
import json
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.event_logs import real_flow, real_run
from tests.support.forked_programs import Call, Program, Programs

from batch_agent import StoreError
from batch_agent.observe.event_log import FILE
from batch_agent.observe.report.html import write_report
from batch_agent.observe.report.live_server import served
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.sim import Script, SimConfig, SimServer

AGENTS = 5
RUN = f"""
import asyncio, pathlib, sys
from batch_agent import BatchAgent, Tool
from batch_agent.testing import ScriptedBackend, by_turn, call, say

folder, go = map(pathlib.Path, sys.argv[1:])

@Tool.define(effect="read")
async def look(name: str) -> str:
    while not go.exists():
        await asyncio.sleep(0.02)
    return "found"

script = by_turn(call("look", name="x"), say("seen"))
asyncio.run(BatchAgent.run(
    task="Look {{it}} up", inputs=[f"thing {{n}}" for n in range({AGENTS})], tools=[look],
    backend=ScriptedBackend(script), checkpoint_dir=folder,
))
"""


def told(stage: str, key: str) -> str:
    if key.startswith("-"):
        raise StoreError("nothing")
    return f"the story of {key} in {stage!r}"


@asynccontextmanager
async def page_of(folder: Path, host: str = "127.0.0.1") -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        served(LogFollower(folder), told, host, 0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", auto_decompress=False) as client,
    ):
        yield client


async def model_of(client: aiohttp.ClientSession) -> dict[str, Any]:
    async with client.get("/run.json") as answer:
        assert answer.status == 200, await answer.text()
        body = await answer.read()
        model: dict[str, Any] = json.loads(gzip.decompress(body))
        return model


async def until(client: aiohttp.ClientSession, state: str, **states: int) -> dict[str, Any]:
    """Looks whenever there is word of a change, as the page does."""
    async with client.get("/changes") as changes:
        async for line in changes.content:
            if line.startswith(b"data: "):
                model = await model_of(client)
                found = model["stages"][0]["states"] if model["stages"] else {}
                if model["state"] == state and all(found[name] == number for name, number in states.items()):
                    return model
    raise AssertionError("the server stopped telling of changes")


async def test_the_served_page_shows_a_run_from_before_its_start_to_its_end(tmp_path: Path, programs: Programs) -> None:
    folder, go = tmp_path / "run", tmp_path / "go"
    folder.mkdir()
    async with page_of(folder) as client:
        assert (await model_of(client))["state"] == "waiting"
        program = programs.start(RUN, str(folder), str(go))
        model = await until(client, "running", tools=AGENTS)
        assert model["stages"][0]["started"] == AGENTS
        async with client.get("/agent/3?stage=") as answer:
            assert (await answer.text()).endswith(" in ''")
        go.touch()
        assert program.wait() == 0
        model = await until(client, "finished")
        assert model["stages"][0]["answered"] == AGENTS


async def test_a_stuck_run_is_shown_as_running_and_a_killed_run_as_ended(tmp_path: Path, programs: Programs) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    async with page_of(folder) as client:
        program = programs.start(RUN, str(folder), str(tmp_path / "never"))
        await until(client, "running", tools=AGENTS)
        long_ago = time.time() - 60
        os.utime(folder / FILE, (long_ago, long_ago))  # as if it were stuck
        assert (await model_of(client))["state"] == "running"
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert reported(folder)["state"] == "ended early"  # at once
        os.utime(folder / FILE, (long_ago, long_ago))
        assert (await model_of(client))["state"] == "ended early"


def reported(folder: Path) -> dict[str, Any]:
    found = re.search(r'id="run">(.*?)</script>', write_report(folder).read_text(), re.DOTALL)
    assert found is not None
    model: dict[str, Any] = json.loads(found[1])
    return model


@pytest.fixture
async def finished(tmp_path: Path) -> Path:
    await real_run(tmp_path / "run", agents=3)
    return tmp_path / "run"


async def test_only_the_report_page_is_served(finished: Path) -> None:
    async with page_of(finished) as client:
        for path in ("/", "/index.html"):
            async with client.get(path) as answer:
                assert "text/html" in answer.headers["Content-Type"]
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        for path in ("/events.jsonl", "/run.sqlite3", "/..%2f..%2fetc%2fpasswd", "/report.html"):
            async with client.get(path) as answer:
                assert answer.status == 404, path
        async with client.post("/run.json") as answer:
            assert answer.status == 405


async def test_an_unchanged_report_is_not_sent_again(finished: Path) -> None:
    async with page_of(finished) as client:
        async with client.get("/run.json", headers={"Accept-Encoding": "identity"}) as answer:
            assert json.loads(await answer.read())["stages"][0]["answered"] == 3
            tag = answer.headers["ETag"]
        async with client.get("/run.json", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        await real_run(finished, agents=4)
        async with client.get("/run.json", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200


async def test_requests_with_another_host_name_are_rejected(finished: Path) -> None:
    async with page_of(finished) as client:
        for host, status in {
            "evil.example": 403,
            "evil.example:80": 403,
            "127.0.0.1.evil.example": 403,
            "localhost:1": 200,
            "[::1]:1": 200,
            "192.0.2.7": 200,
        }.items():
            async with client.get("/", headers={"Host": host}) as answer:
                assert answer.status == status, host


async def test_an_unknown_agent_is_a_404(finished: Path) -> None:
    async with page_of(finished) as client:
        for path in ("/agent/99", "/agent/0?stage=other", "/agent/x"):
            async with client.get(path) as answer:
                assert answer.status == 404, path


async def test_an_unreadable_log_is_reported_and_read_once_it_is_readable(finished: Path) -> None:
    log = (finished / FILE).read_bytes()
    (finished / FILE).write_bytes(b'[1.0,"Opened","",99]\n')
    async with page_of(finished) as client:
        async with client.get("/run.json") as answer:
            assert (answer.status, "newer version" in await answer.text()) == (503, True)
        (finished / FILE).write_bytes(log)
        assert (await model_of(client))["state"] == "finished"


async def test_many_clients_can_follow_and_are_disconnected_at_the_end(finished: Path) -> None:
    async with page_of(finished) as client:
        listening = [await client.get("/changes") for _ in range(20)]
        for each in listening:
            assert (await each.content.readline()).startswith(b"data: ")
    for each in listening:
        each.close()


def serve(programs: Programs, tmp_path: Path, *words: str) -> tuple[Program, str]:
    """Started, and where it is."""
    said = tmp_path / "said"
    os.mkfifo(said)
    program = programs.start(
        "from batch_agent.cli.app import main; main()", "serve", *words, "--port", "0", cwd=tmp_path, stdout=said
    )
    with said.open() as lines:
        found = re.search(r"http://\S+/", lines.readline())
    assert found is not None
    return program, found[0]


async def test_the_serve_command_prints_its_url_shows_agents_and_ends_at_once(
    tmp_path: Path, programs: Programs
) -> None:
    await real_run(tmp_path / "run", agents=3)
    program, address = serve(programs, tmp_path, "run")
    async with aiohttp.ClientSession(address) as client:
        async with client.get("agent/1") as answer:
            story = await answer.text()
        assert "input     number 1" in story
        assert "call    look" in story
        assert story.endswith("answered  1")
        async with client.get("changes") as changes:
            await changes.content.readline()
            program.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(program.wait) == 130
    assert program.stderr.read_text() == ""


async def test_the_serve_command_shows_stage_agents_and_warns_about_public_addresses(
    tmp_path: Path, programs: Programs
) -> None:
    await real_flow(tmp_path / "run")
    program, address = serve(programs, tmp_path, "run", "--host", "0.0.0.0")
    async with aiohttp.ClientSession(address) as client:
        async with client.get("agent/0?stage=sum") as answer:
            assert "Sum it up" in await answer.text()
        async with client.get("agent/0?stage=..") as answer:
            assert answer.status == 404
    program.send_signal(signal.SIGTERM)
    program.wait()
    assert "everyone who can reach 0.0.0.0" in program.stderr.read_text()


def test_an_invalid_serve_command_is_a_one_line_error(tmp_path: Path, call: Call) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").touch()
    (tmp_path / "flow" / "stage").mkdir(parents=True)
    (tmp_path / "flow" / FILE).touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, problem in (
            (("serve", "gone"), "'gone' is not a directory"),
            (("serve", "empty"), "'empty' is not the checkpoint of a run"),
            (("serve", "run", "--port", port), f"port {port}: Address already in use. Choose another"),
            (("report", "run"), "has no event log"),
            (("report", "flow/stage"), "'flow/stage' is one stage of the run in"),
        ):
            done = call(*words, cwd=tmp_path)
            assert done.returncode == 2
            assert problem in done.stderr
            assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_run_prints_the_path_of_its_report_and_it_can_be_rebuilt(tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        done = call("run", "--task", "{text}", "--inputs", "in.jsonl", "--backend", sim.url, cwd=tmp_path)
    report = Path("results.jsonl.checkpoint", "report.html")
    assert f"Results: results.jsonl\nReport: {report}\n" in done.stderr
    (tmp_path / report).unlink()
    done = call("report", "results.jsonl.checkpoint", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"Report: {report}\n")
    assert (tmp_path / report).exists()
