"""kill -9 at 200 random moments of runs with pure, read and write tools: real processes, real SQLite, nothing lost,
nothing made twice, no answer changed. Here because it takes a minute."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AGENTS = [f"n{number}" for number in range(8)]
KILLS = 200
NURSERY = """
import asyncio, json, os, signal, sys, time
from batch_agent import BatchAgent, Tool
from batch_agent.core.messages import Assistant, ToolCall, ToolResults
from batch_agent.testing import ScriptedBackend, calls, say

plan = {}

def note(file, line):
    with open(plan["folder"] + "/" + file, "a") as opened:
        opened.write(line + "\\n")

@Tool.define(effect="pure")
async def square(number: int) -> int:
    await asyncio.sleep(0.002)
    return number * number

@Tool.define(effect="read")
def look(key: str) -> str:
    time.sleep(0.002)
    return "value of " + key

@Tool.define(effect="write")
async def put(line: str) -> str:
    await asyncio.sleep(0.001)
    note("effects", line)
    await asyncio.sleep(0.001)
    return "put " + line

def ask(tool, **arguments):
    return ToolCall("", tool, json.dumps(arguments))

async def script(request):
    who = request.messages[0].text
    turn = sum(isinstance(message, Assistant) for message in request.messages)
    note("paid", who + " " + str(turn))
    await asyncio.sleep(0.003)
    if turn == 0:
        return calls(ask("square", number=int(who[1:]) % 3), ask("look", key="k" + str(int(who[1:]) % 2)))
    if turn == 1:
        return calls(ask("put", line=who + "a"), ask("put", line=who + "b"))
    if turn == 2:
        return calls(ask("put", line=who + "c"))
    seen = [r.content for m in request.messages if isinstance(m, ToolResults) for r in m.results if not r.is_error]
    return say(json.dumps(sorted(text for text in seen if not text.startswith("put"))))

def live():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    results = BatchAgent.run_sync(
        task="{it}", inputs=plan["inputs"], tools=[square, look, put], output_schema=list[str], max_inflight=4,
        backend=ScriptedBackend(script), checkpoint_dir=plan["folder"] + "/run", progress=False,
    )
    told = [[r.input, r.output, [[m.call.arguments, m.is_error] for t in r.transcript if isinstance(t, ToolResults)
             for m in t.results if m.call.name == "put"]] for r in results]
    with open(plan["folder"] + "/told", "w") as file:
        json.dump(told, file)
    os._exit(0)

for line in sys.stdin:
    plan = json.loads(line)
    child = os.fork()
    if child == 0:
        live()
    if plan["after"] is not None:
        time.sleep(plan["after"])
        os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(nursery: "subprocess.Popen[str]", folder: Path, after: float | None) -> int:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    folder.mkdir(exist_ok=True)
    nursery.stdin.write(json.dumps({"folder": str(folder), "inputs": AGENTS, "after": after}) + "\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline())


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def answers(folder: Path) -> list[Any]:
    return [[who, output] for who, output, _ in json.loads((folder / "told").read_text())]


@pytest.mark.nightly
def test_a_run_killed_200_times_loses_repeats_and_changes_no_answer(
    nursery: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    assert run(nursery, whole, None) == 0
    began = time.monotonic()
    assert run(nursery, tmp_path / "timed", None) == 0
    seconds = time.monotonic() - began  # what a run takes on this machine, as busy as it is
    dice, kills, unknown, trial = random.Random(7), 0, 0, 0
    while kills < KILLS:
        trial += 1
        folder = tmp_path / str(trial)
        killed_here = 0
        for _ in range(3):
            killed_here += run(nursery, folder, dice.uniform(0.05, 1.0) * seconds) == 9
        assert run(nursery, folder, None) == 0
        kills += killed_here
        assert answers(folder) == answers(whole)
        made = Counter(lines(folder / "effects"))
        assert max(made.values()) == 1, "a doubled write"
        for _, _, puts in json.loads((folder / "told").read_text()):
            for arguments, is_error in puts:
                unknown += is_error
                assert is_error or made[json.loads(arguments)["line"]] == 1, "a lost write"
        # At most the turns under way at a kill are paid again: four slots, and as many agents that wait for the disk.
        paid = Counter(lines(folder / "paid"))
        assert set(paid) == {f"{who} {turn}" for who in AGENTS for turn in range(4)}
        assert paid.total() - len(paid) <= killed_here * 8
        assert trial < 2 * KILLS
    assert unknown > 0


FULL_DISK = """
import json, resource, signal, sys
from batch_agent import BatchAgent, StoreError
from batch_agent.testing import ScriptedBackend, say

folder, most = sys.argv[1], int(sys.argv[2])
if most:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
backend = ScriptedBackend(lambda request: say("x" * 2000), seconds=0.005)
try:
    results = BatchAgent.run_sync(
        task="{it}", inputs=[str(n) for n in range(400)], backend=backend, checkpoint_dir=folder, max_inflight=4,
        progress=False,
    )
    print(json.dumps([sum(r.ok for r in results), len(backend.requests), ""]))
except StoreError as error:
    print(json.dumps([0, len(backend.requests), str(error)]))
"""


def test_a_full_disk_is_one_clear_error_and_stored_answers_are_not_requested_again(tmp_path: Path) -> None:
    def attempt(most: int) -> tuple[int, int, str]:
        command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run"), str(most)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        good, asked, error = json.loads(done.stdout)
        return good, asked, error

    _, asked, error = attempt(400_000)
    assert "Check that the directory is writable and the disk has space" in error
    assert asked < 400
    good, asked_again, error = attempt(0)
    assert (good, error) == (400, "")
    assert asked_again < 400
