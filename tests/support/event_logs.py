"""Event logs for tests: of real runs, and written by hand."""

import asyncio
import os
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from batch_agent import BackendError, BatchAgent, ErrorKind, Flow, Tool, Usage
from batch_agent.core.events import AgentFinished, AgentStarted, Event, RunStarted, TurnEnded
from batch_agent.core.messages import Assistant
from batch_agent.core.requests import Reply, Request
from batch_agent.core.results import AgentError, AgentResult, Timing
from batch_agent.observe.event_codec import event_line
from batch_agent.observe.event_log import FILE, closed_line, opened_line
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.testing import Script, ScriptedBackend, call, say

BEGAN = 1_700_000_000.0
STARTED = RunStarted("vllm", "m", 8, 2)


def written(folder: Path, *processes: Iterable[tuple[float, Event]], is_closed: bool = True) -> Path:
    """A log by hand, whose writer is long gone. Times are seconds from the beginning of each process; an hour lies
    between two."""
    folder.mkdir(exist_ok=True)
    lines: list[bytes] = []
    for number, events in enumerate(processes):
        began = BEGAN + 3600 * number
        at = began
        lines.append(opened_line(began))
        for since, event in events:
            at = began + since
            lines.append(event_line(at, event))
        if is_closed:
            lines.append(closed_line(at, began))
    (folder / FILE).write_bytes(b"".join(lines))
    os.utime(folder / FILE, (BEGAN, BEGAN))
    return folder


def seen(folder: Path) -> dict[str, Any]:
    following = LogFollower(folder)
    following.read_all()
    return following.model()


def turn(key: str, number: int, usage: Usage, seconds: float = 1.0) -> TurnEnded:
    return TurnEnded(key, number, usage, "stop", 0.5, seconds, 0.1, 1)


def answered(key: str, index: int, *, resumed: bool = False, usage: Usage | None = None) -> AgentFinished:
    return AgentFinished(
        AgentResult(index, key, output="yes", text="yes", usage=usage or Usage(), timing=Timing(0.0, (), 2.0)), resumed
    )


def failed(key: str, index: int, kind: ErrorKind = ErrorKind.SERVER) -> AgentFinished:
    return AgentFinished(AgentResult(index, key, error=AgentError(kind, "no")), resumed=False)


def started(*agents: tuple[str, int]) -> list[tuple[float, Event]]:
    return [(0.0, STARTED), *((0.0, AgentStarted(key, index)) for key, index in agents)]


def segments(model: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """By stage and index: what, from and to, in hundredths of a second."""
    timeline = model["timeline"]
    numbers = _varints(b64decode(timeline["segments"]))
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for stage, index, clock in zip(timeline["stage"], timeline["index"], timeline["start"], strict=True):
        mine = found[stage, index] = []
        for _ in range(next(numbers)):
            kind, gap, length = next(numbers), next(numbers), next(numbers)
            mine.append((kind, clock + gap, clock + gap + length))
            clock += gap + length
    assert next(numbers, None) is None
    return found


def _varints(encoded: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in encoded:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


@Tool.define
async def look(name: str) -> str:
    """Look up."""
    await asyncio.sleep(0.001)
    return f"about {name}"


def troubled(*, refuses: bool) -> Script:
    """Every third agent's second turn fails once, every fourth's answer is asked for again, and one may be refused."""
    tries: Counter[tuple[str, int]] = Counter()

    def answer(request: Request) -> Reply | BackendError:
        text = getattr(request.messages[0], "text", "")
        number, turn = int(text.split()[-1]), sum(isinstance(each, Assistant) for each in request.messages)
        tries[text, turn] += 1
        if number == 5 and refuses:
            return BackendError(ErrorKind.BAD_REQUEST, "refused")
        if number % 3 == 0 and turn == 1 and tries[text, turn] == 1:
            return BackendError(ErrorKind.SERVER, "try again", retry_after=0.001)
        if turn == 0:
            return call("look", name=f"thing {number % 4}")
        return say("not a number" if number % 4 == 0 and turn == 1 else str(number), Usage(100, 60, 10))

    return answer


async def real_run(folder: Path, *, agents: int = 12, refuses: bool = False, **options: Any) -> None:
    """With tools, retries, answers that are asked for again, and one agent that fails if `refuses`."""
    await BatchAgent.run(
        task="Look up {it}",
        inputs=[f"number {n}" for n in range(agents)],
        tools=[look],
        output_schema=int,
        backend=ScriptedBackend(troubled(refuses=refuses), seconds=0.002),
        checkpoint_dir=folder,
        **options,
    )


async def real_flow(folder: Path) -> None:
    backend = ScriptedBackend(lambda request: say("fine", Usage(10, 0, 1)), seconds=0.002)
    flow = Flow([f"number {n}" for n in range(6)], backend=backend, checkpoint_dir=folder)
    await flow.map("draft", "Say something of {it}").reduce("sum", "Sum it up").run()
