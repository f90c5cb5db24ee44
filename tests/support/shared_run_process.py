"""A process of a run that several share: it calls, works, or does both, and writes down what it does.

Started as a program, it reads plans, one as JSON in each line, and forks a process for each: what a process can do and
suffer is as real as after a start of its own; what is not repeated is a second of imports. `{"wait": PID}` waits for
one of them."""

import asyncio
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import redis.asyncio  # noqa: F401 - before the fork

from batch_agent import BatchAgent, Tool
from batch_agent.cli.signals import StoppedBySignal, run_until_signal
from batch_agent.cluster.coordinator_address import coordinator_of
from batch_agent.core.errors import StoreError
from batch_agent.core.events import AgentReassigned, Event, TurnEnded, TurnStarted
from batch_agent.core.results import AgentResult
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.result_stream import ResultStream
from batch_agent.run import runner
from batch_agent.run.setup import RunSetup

STORE_FAILED = 3
"""The exit status of a process that could not go on because of its store."""


class Notes:
    """Lines of one file that many processes write, and that outlive them."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Turns:
    """A sink that notes every turn before it is asked, and after it was answered."""

    def __init__(self, folder: Path, name: str) -> None:
        self._notes = Notes(folder / "turns")
        self._name = name

    def emit(self, event: Event) -> None:
        match event:
            case TurnStarted(key, turn):
                self._notes.add(time.monotonic(), self._name, "asked", key, turn)
            case TurnEnded(key, turn):
                self._notes.add(time.monotonic(), self._name, "answered", key, turn)
            case AgentReassigned(key):
                self._notes.add(time.monotonic(), self._name, "moved", key, 0)
            case _:
                pass


def tools_of(folder: Path, name: str, seconds: float, rate: float | None, most: int | None) -> dict[str, Tool]:
    """Each notes that it is made, in the middle of the time that it takes."""
    put_notes, look_notes = Notes(folder / "put"), Notes(folder / "looked")
    inside_notes = Notes(folder / "inside")

    @Tool.define(effect="write", max_concurrent=most)
    async def put(line: str) -> str:
        """Put it there."""
        inside_notes.add(time.monotonic(), name, "entered")
        await asyncio.sleep(seconds / 2)
        put_notes.add(time.monotonic(), name, line)
        await asyncio.sleep(seconds / 2)
        inside_notes.add(time.monotonic(), name, "left")
        return f"put {line}"

    @Tool.define(effect="read", rate_limit=rate, burst=1 if rate else None)
    async def look(key: str) -> str:
        """Look it up."""
        look_notes.add(time.monotonic(), name, key)
        await asyncio.sleep(seconds)
        return f"value of {key}"

    return {"put": put, "look": look}


class Part:
    """What one process does in a run."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._kind = plan["kind"]
        self._name = plan["name"]
        self._folder = Path(plan["folder"])
        self._inputs = plan["inputs"]
        self._at_once = len(self._inputs) - plan["held_back"]
        tools = tools_of(self._folder, self._name, plan["seconds"], plan["rate"], plan["most"])
        self._options = {
            "task": "{it}",
            "tools": [tools[name] for name in plan["tools"]],
            "backend": plan["engine"],
            "store": plan["store"],
            "run_id": "run",
            **plan["options"],
        }

    async def play(self) -> None:
        turns = Turns(self._folder, self._name)
        if self._kind == "work":
            spec = BatchSpec.of(inputs=[], **self._options)
            coordinator = coordinator_of(spec)
            assert coordinator is not None
            await runner.work(RunSetup.validate(spec, turns), coordinator)
            return
        notes = Notes(self._folder / f"results of {self._name}")
        async for result in self._results(turns):
            notes.add(json.dumps(_told(result)))

    def _results(self, turns: Turns) -> AsyncIterator[AgentResult]:
        if self._kind == "both":
            return BatchAgent.stream(inputs=self._asked(), events=turns, **self._options)
        spec = BatchSpec.of(inputs=self._asked(), **self._options)
        return ResultStream(
            partial(runner.run, RunSetup.validate(spec, turns), coordinator=coordinator_of(spec), runs_agents=False)
        )

    async def _asked(self) -> AsyncIterator[str]:
        """The last ones when the test says so."""
        for number, each in enumerate(self._inputs):
            while number >= self._at_once and not (self._folder / "go").exists():
                await asyncio.sleep(0.01)
            yield each


def _told(result: AgentResult) -> dict[str, Any]:
    return {
        "at": time.monotonic(),
        "index": result.index,
        "output": result.output,
        "error": result.error and str(result.error),
        "turns": result.turns,
        "calls": [[call.name, call.ok] for call in result.tool_calls],
    }


def live(plan: dict[str, Any]) -> int:
    said = os.open(Path(plan["folder"], f"said by {plan['name']}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(said, number)
    try:
        ended = run_until_signal(Part(plan).play())
    except StoreError as error:
        print(error, flush=True)
        return STORE_FAILED
    return ended.status if isinstance(ended, StoppedBySignal) else 0


def main() -> None:
    living = set()
    gc.freeze()  # a collector that went through all of this in each child would copy it
    for line in sys.stdin:
        plan = json.loads(line)
        if "wait" in plan:
            print(os.waitstatus_to_exitcode(os.waitpid(plan["wait"], 0)[1]), flush=True)
            living.discard(plan["wait"])
            continue
        child = os.fork()
        if child == 0:
            break
        living.add(child)
        print(child, flush=True)
    else:
        for child in living:  # the test was killed
            os.kill(child, signal.SIGKILL)
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        status = live(plan)
    except Exception:  # noqa: BLE001 - whatever it is, the parent's loop is not this process's
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
