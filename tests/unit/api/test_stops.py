"""After a stop, and another run of the same checkpoint, every write was made once. Real processes and signals."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, json, os, signal, sys, threading, time
import batch_agent.tools.agent_tools
from batch_agent import BackendError, BatchAgent, ErrorKind, RunStopped, Tool
from batch_agent.core.messages import ToolCall, ToolResults
from batch_agent.testing import ScriptedBackend, calls, say

plan = json.loads(sys.argv[1])
batch_agent.tools.agent_tools.LAST_WRITES = 60.0  # a busy machine has the time that it needs
made, lock, loop = 0, threading.Lock(), None

def note(line):
    "The effect. After so many of them, the program is stopped."
    global made
    with lock:
        with open(plan["folder"] + "/effects", "a") as file:
            file.write(line + "\\n")
        made += 1
        if made == plan.get("at"):
            stop[plan["stop"]]()

def enter(line):
    with open(plan["folder"] + "/entered", "a") as file:
        file.write(line + "\\n")

async def put_async(line: str) -> str:
    enter(line)
    await asyncio.sleep(plan.get("pause", 0.002))
    note(line)
    await asyncio.sleep(plan.get("pause", 0.002))
    return "put " + line

def put_sync(line: str) -> str:
    enter(line)
    time.sleep(plan.get("pause", 0.002))
    note(line)
    time.sleep(plan.get("pause", 0.002))
    return "put " + line

async def put_many(lines: list[str]) -> list[str]:
    return [await put_async(line) for line in lines]

tools = {
    "limit": lambda: Tool.define(name="put", max_concurrent=3)(put_async),
    "rate": lambda: Tool.define(name="put", rate_limit=500, burst=3)(put_async),
    "both": lambda: Tool.define(name="put", max_concurrent=2, rate_limit=800)(put_async),
    "plain": lambda: Tool.define(name="put")(put_async),
    "threads": lambda: Tool.define(name="put")(put_sync),
    "batch": lambda: Tool.batchable(key_arg="line", max_batch=7, name="put", effect="write")(put_many),
}

class Dead(Exception):
    pass

gone = False

def die():
    global gone
    gone = True

stop = {
    "int": lambda: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "cancel": lambda: loop.call_soon_threadsafe(running.cancel),
    "dead": die,
    "none": lambda: None,
}

def script(request):
    if gone:
        raise BackendError(ErrorKind.AUTH, "the key was withdrawn")
    heard = [each for each in request.messages if isinstance(each, ToolResults)]
    if heard:
        return say(json.dumps([[r.content, r.is_error] for r in heard[0].results]))
    return calls(ToolCall("", "put", json.dumps({"line": request.messages[0].text})))

async def main():
    global running, loop
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    options = {"timeout_per_agent": plan["seconds"]} if plan.get("seconds") else {}
    if plan.get("store"):
        options |= {"store": plan["store"], "run_id": "stopped", "lease": 2.0}
    else:
        options["checkpoint_dir"] = plan["folder"] + "/checkpoint"
    results = await BatchAgent.run(
        task="{it}", inputs=[f"line {n}" for n in range(plan["agents"])], tools=[tools[plan["tool"]]()],
        backend=ScriptedBackend(script), max_inflight=1000, max_dispatched=1000,
        progress=False, **options,
    )
    print(json.dumps([json.loads(r.text) if r.ok else str(r.error) for r in results]))

try:
    asyncio.run(main())
except (KeyboardInterrupt, asyncio.CancelledError, RunStopped) as error:
    sys.exit(f"stopped by {type(error).__name__}")
"""


def run(folder: Path, **plan: Any) -> "subprocess.CompletedProcess[str]":
    folder.mkdir(exist_ok=True)
    told = json.dumps({"folder": str(folder), "agents": 120} | plan)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, told], capture_output=True, text=True, timeout=120, check=False
    )


def effects(folder: Path) -> Counter[str]:
    file = folder / "effects"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


def finish(folder: Path, tool: str, **plan: Any) -> list[Any]:
    done = run(folder, tool=tool, **plan)
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("stop", ["int", "cancel", "dead"])
@pytest.mark.parametrize("tool", ["limit", "rate", "both", "plain", "threads", "batch"])
def test_after_a_graceful_stop_and_a_resume_every_write_was_made_once(tmp_path: Path, tool: str, stop: str) -> None:
    stopped = run(tmp_path, tool=tool, stop=stop, at=20)
    assert stopped.returncode == 1, stopped.stderr
    assert "stopped by" in stopped.stderr
    assert effects(tmp_path).total() < 120 or tool in ("plain", "batch")  # whose functions were all entered at once
    told = finish(tmp_path, tool)
    assert effects(tmp_path) == {f"line {n}": 1 for n in range(120)}
    assert told == [[[f"put line {n}", False]] for n in range(120)]


def check_killed(folder: Path, told: list[Any], most_about_to_be_entered: int) -> None:
    """No write was made twice, and only those are unknown whose function was entered, or just about to be."""
    made, entered = effects(folder), set((folder / "entered").read_text().splitlines())
    assert max(made.values()) == 1
    unknown = {f"line {n}" for n, [[content, _]] in enumerate(told) if "not known whether" in content}
    assert all(made[f"line {n}"] == 1 for n in range(120) if f"line {n}" not in unknown)
    assert len(unknown - entered) <= most_about_to_be_entered


PLACES = {"limit": 3, "rate": 120, "both": 2, "threads": 64, "batch": 120}


@pytest.mark.parametrize("tool", PLACES)
def test_after_sigkill_only_entered_writes_are_unknown(tmp_path: Path, tool: str) -> None:
    assert run(tmp_path, tool=tool, stop="kill", at=20).returncode == -9
    check_killed(tmp_path, finish(tmp_path, tool), PLACES[tool])


@pytest.mark.parametrize("tool", ["limit", "rate", "threads"])
def test_agents_that_time_out_before_their_write_started_make_it_after_a_resume(tmp_path: Path, tool: str) -> None:
    plan: dict[str, Any] = {"tool": tool, "agents": 120 if tool == "limit" else 400, "pause": 0.02}
    told = json.loads(run(tmp_path, seconds=0.15, **plan).stdout)
    assert any("agent_timeout" in str(each) or "timeout_per_agent" in str(each) for each in told)
    done = run(tmp_path, **plan)
    assert done.returncode == 0, done.stderr
    assert effects(tmp_path) == {f"line {n}": 1 for n in range(plan["agents"])}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own(*AOF) as started:
        yield started


@pytest.mark.parametrize("stop", ["int", "cancel", "dead"])
@pytest.mark.parametrize("tool", ["limit", "both", "threads", "batch"])
def test_a_stopped_and_resumed_shared_run_makes_every_write_once(
    tmp_path: Path, tool: str, stop: str, server: RedisServer
) -> None:
    stopped = run(tmp_path, tool=tool, stop=stop, at=20, store=server.url)
    assert stopped.returncode == 1, stopped.stderr
    assert "stopped by" in stopped.stderr
    told = finish(tmp_path, tool, store=server.url)
    assert effects(tmp_path) == {f"line {n}": 1 for n in range(120)}
    assert told == [[[f"put line {n}", False]] for n in range(120)]


@pytest.mark.parametrize("tool", ["limit", "threads"])
def test_after_sigkill_of_a_shared_run_only_entered_writes_are_unknown(
    tmp_path: Path, tool: str, server: RedisServer
) -> None:
    assert run(tmp_path, tool=tool, stop="kill", at=20, store=server.url).returncode == -9
    check_killed(tmp_path, finish(tmp_path, tool, store=server.url), PLACES[tool])
