"""What every peer is asked to do, and the account of what it did. Nothing is imported that an environment may lack."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

MODEL = "sim"
SYSTEM = "You are a careful reviewer. " * 20
TASK = "Review item {i}: is it in order?"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look a key up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


@dataclass(frozen=True, slots=True)
class Work:
    """Agents numbered from 0, at most `inflight` requests at once."""

    urls: tuple[str, ...]
    agents: int
    inflight: int
    tool_s: float | None = None
    """How long a tool call takes; None: agents have no tool, and one turn."""
    is_streamed: bool = False
    retries: int = 5
    checkpoint: str | None = None
    """A folder that is new."""
    holds: bool = False
    """Nobody's tool returns before all agents are in theirs."""
    model: str = MODEL
    answer_tokens: int | None = None
    """How long every answer is; None: the model ends it. Ours and the loops of a page are told, for real servers."""

    @property
    def options(self) -> dict[str, Any]:
        """What a loop says in every request beside the messages."""
        tools = {} if self.tool_s is None else {"tools": [TOOL]}
        length = {} if self.answer_tokens is None else {"max_tokens": self.answer_tokens, "ignore_eos": True}
        return {"model": self.model, **tools, **length}

    @property
    def url(self) -> str:
        return self.urls[0]

    def prompt(self, agent: int) -> str:
        return TASK.format(i=agent)

    def messages(self, agent: int) -> list[dict[str, Any]]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.prompt(agent)}]

    @classmethod
    def from_json(cls, text: str) -> Self:
        read: dict[str, Any] = json.loads(text)
        return cls(**{**read, "urls": tuple(read["urls"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Tally:
    """What a peer did: `look` is the tool that its agents have, `tell` hears of every answer."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._answers: dict[int, int] = {}
        self._all_wait = asyncio.Event()
        self.failed = 0
        self.executions = 0
        self.waiting_kb: int | None = None
        self.ttfts: list[float] = []
        self.first_words = ""

    async def look(self, key: str) -> str:
        """Look a key up."""
        self.executions += 1
        if self._work.holds:
            await self._hold()
        await asyncio.sleep(self._work.tool_s or 0)
        return f"the value of {key}"

    def tell(self, agent: int, answer: str | None) -> None:
        """`agent` has ended, without an answer where it failed."""
        self._answers[agent] = self._answers.get(agent, 0) + 1
        self.failed += not answer

    def fail(self, agent: int, error: BaseException) -> None:
        """Keeps the words of the first that failed."""
        self.first_words = self.first_words or f"{type(error).__name__}: {error}"[:300]
        self.tell(agent, None)

    def numbers(self) -> dict[str, float]:
        told = {
            "answered": len(self._answers) - self.failed,
            "failed": self.failed,
            "lost": self._work.agents - len(self._answers),
            "doubled": sum(count - 1 for count in self._answers.values()),
            "executions": self.executions,
        }
        waits = {} if self.waiting_kb is None else {"waiting_kb": self.waiting_kb}
        return {**told, **waits, **_ttft(self.ttfts)}

    async def _hold(self) -> None:
        if self.executions == self._work.agents:
            self.waiting_kb = memory_kb("VmRSS", os.getpid())
            self._all_wait.set()
        await self._all_wait.wait()


class Stopwatch:
    """Of one streamed answer, from when it is made: `see` takes every piece of it, those without words too."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._began: float | None = time.perf_counter()

    def see(self, piece: str | None) -> None:
        if piece and self._began is not None:
            self._tally.ttfts.append(time.perf_counter() - self._began)
            self._began = None


async def gathered(work: Work, tally: Tally, one: Callable[[int], Awaitable[str]], at_once: int | None = None) -> None:
    """What is written around a framework that runs one agent: as many at once as there may be requests, unless the
    framework itself counts those. `one` answers for an agent."""
    room = asyncio.Semaphore(at_once or work.inflight)

    async def kept(agent: int) -> None:
        async with room:
            try:
                tally.tell(agent, await one(agent))
            except Exception as error:  # noqa: BLE001 - whatever a framework raises
                tally.fail(agent, error)

    await asyncio.gather(*map(kept, range(work.agents)))


def memory_kb(name: str, process: int) -> int:
    """`VmRSS` or `VmHWM` of a process. The latter begins with the program, unlike `ru_maxrss`, which begins with what
    the parent had."""
    try:
        with open(f"/proc/{process}/status") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(f"{name}:")), 0)
    except OSError:  # it has ended meanwhile
        return 0


def _ttft(found: Sequence[float]) -> dict[str, float]:
    if not found:
        return {}
    ordered = sorted(found)
    return {"ttft_p50_s": ordered[len(ordered) // 2], "ttft_p99_s": ordered[len(ordered) * 99 // 100]}
