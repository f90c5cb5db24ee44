"""Shared run of several processes: server, engine, processes, and the files they write."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from batch_agent.sim import SimConfig, SimServer

ROOT = Path(__file__).parents[2]
LEASE = 2.0
SLOTS = 32
"""Requests in flight, of all processes together."""
LIMIT = 60.0
"""Seconds for anything that a test waits for; only what hangs takes so long."""
ENGINE = SimConfig(step_base_ms=6, step_us_per_seq=0, prefill_us_per_token=5, chunk_tokens=64, max_num_seqs=1024)


class ProcessParent:
    """Where the processes of a test are started. All that are left are killed at its end."""

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.support.shared_run_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._living: set[int] = set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()
        self._parent.communicate(timeout=LIMIT)

    def start(self, plan: dict[str, Any]) -> int:
        """The id of the new process."""
        pid = self._asked(plan)
        self._living.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Its exit status, or the number of the signal that ended it, below zero."""
        status = self._asked({"wait": pid})
        self._living.discard(pid)
        return status

    def signal(self, pid: int, number: signal.Signals) -> None:
        assert pid in self._living, "it has ended, and its id may be another's by now"
        os.kill(pid, number)

    def end_all(self) -> None:
        for pid in self._living:
            self.signal(pid, signal.SIGKILL)
        for pid in list(self._living):
            self.wait(pid)

    def _asked(self, plan: dict[str, Any]) -> int:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(plan) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())


@dataclass(frozen=True, slots=True)
class SharedRunProcess:
    """A process of the run."""

    name: str
    pid: int
    parent: ProcessParent

    def kill(self) -> float:
        """As `kill -9` does. When that was, as in what processes note."""
        at = self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL
        return at

    def signal(self, number: signal.Signals) -> float:
        at = time.monotonic()
        self.parent.signal(self.pid, number)
        return at

    def wait(self) -> int:
        return self.parent.wait(self.pid)


@dataclass(frozen=True, slots=True)
class Made:
    """A call of a tool, as the process that made it noted it."""

    at: float
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What a process noted of one."""

    at: float
    name: str
    what: str
    key: str
    number: int

    @property
    def which(self) -> tuple[str, int]:
        return self.key, self.number


class Scene:
    """One run. Everything that its processes do is in its folder; they end with it."""

    def __init__(self, folder: Path, parent: ProcessParent, engine: str, store: str) -> None:
        self.folder = folder
        self.parent = parent
        self.engine = engine
        self.store = store
        self.options: dict[str, Any] = {"lease": LEASE, "max_inflight": SLOTS, "model": "sim"}
        self.tools = ["put", "look"]
        self.seconds_of_tools = 0.02
        self.rate: float | None = None
        """Of looking something up."""
        self.most: int | None = None
        """Of putting something there, at the same time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.parent.end_all()

    def work(self, name: str, store: str | None = None) -> SharedRunProcess:
        return self._start("work", name, store or self.store, [])

    def workers(self, number: int) -> list[SharedRunProcess]:
        return [self.work(f"worker {n}") for n in range(number)]

    def call(
        self, inputs: list[str], name: str = "caller", *, works: bool = False, held_back: int = 0
    ) -> SharedRunProcess:
        """`held_back`: so many of the inputs come when the test says so, by `go`."""
        return self._start("both" if works else "call", name, self.store, inputs, held_back)

    def go(self) -> None:
        (self.folder / "go").touch()

    def _start(self, kind: str, name: str, store: str, inputs: list[str], held_back: int = 0) -> SharedRunProcess:
        plan = {"kind": kind, "name": name, "store": store, "engine": self.engine}
        asked = {"inputs": inputs, "held_back": held_back}
        settings = {"folder": str(self.folder), "options": self.options}
        tools = {"tools": self.tools, "seconds": self.seconds_of_tools, "rate": self.rate, "most": self.most}
        return SharedRunProcess(name, self.parent.start({**plan, **asked, **settings, **tools}), self.parent)

    def end(self, *processes: SharedRunProcess) -> None:
        """They come to their ends, by themselves and well."""
        assert [process.wait() for process in processes] == [0] * len(processes), self.said()

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []

    def results(self, name: str = "caller") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(f"results of {name}")]

    def turns(self, what: str = "asked") -> list[Turn]:
        return [turn for turn in map(_turn, self.lines("turns")) if turn.what == what]

    def made(self, tool: str) -> list[Made]:
        """`tool`: what it did."""
        return list(map(_made, self.lines(tool)))

    def said(self) -> str:
        """For whoever looks for what went wrong."""
        found = sorted(self.folder.glob("said by *"))
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in found if path.stat().st_size)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits for something that processes do."""
        deadline = time.monotonic() + LIMIT
        while not is_so():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def until_results(self, number: int, name: str = "caller") -> None:
        self.until(lambda: len(self.lines(f"results of {name}")) >= number)

    def seconds(self, name: str = "caller") -> float:
        """From the first turn to the last result."""
        return float(max(result["at"] for result in self.results(name)) - min(turn.at for turn in self.turns()))

    def asked_again(self) -> Counter[tuple[str, int]]:
        """Turns that were asked more than once, and how often beyond that."""
        times = Counter(turn.which for turn in self.turns())
        return Counter({which: number - 1 for which, number in times.items() if number > 1})


def _made(line: str) -> Made:
    at, rest = line.split(" ", 1)
    name, what = rest.rsplit(" ", 1)
    return Made(float(at), name, what)


def _turn(line: str) -> Turn:
    at, rest = line.split(" ", 1)
    name, what, key, number = rest.rsplit(" ", 3)
    return Turn(float(at), name, what, key, int(number))


def agent(number: int, *, looks_for: str | None = None) -> str:
    """What the input of an agent says: in the first turn it puts its number there and looks something up, in the
    second it answers."""
    look = {"name": "look", "arguments": {"key": looks_for or f"k{number % 10}"}}
    calls = [look] if looks_for else [{"name": "put", "arguments": {"line": f"n{number}"}}, look]
    return f"[[sim: {json.dumps([{'calls': calls}, {'text': f'answer {number}'}])}]]"


def agents(number: int) -> list[str]:
    return [agent(n) for n in range(number)]


@contextlib.contextmanager
def engine() -> Iterator[SimServer]:
    with SimServer(ENGINE) as server:
        yield server
