"""The events of a run in a file, one on each line: what the report and the live page are made from.

A line is a JSON list: when it was (seconds since the epoch), what it is, the stage of a flow ("" elsewhere), and its
parts. What the agents read and said is not in it: that is in the checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from ..core.errors import ErrorKind
from ..core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    FlowStarted,
    InStage,
    LimitChanged,
    Notice,
    Paused,
    Queued,
    RequestRetried,
    Resumed,
    RunStarted,
    Sampled,
    Scheduled,
    Shared,
    Spent,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
)
from ..core.requests import Usage
from ..core.results import AgentError, AgentResult, CallRecord, Timing
from .story import as_text

FILE = "events.jsonl"
_FORMAT = 1
_OPENED, _CLOSED = "Opened", "Closed"
_LONGEST = 300
"""Characters of an answer or of an error."""

_RARE = (
    Notice, RunStarted, RequestRetried, LimitChanged, Paused, Resumed, ToolsUsed, Spent, Scheduled, Shared,
    FlowStarted, Queued,
)  # fmt: skip
_READ_RARE: dict[str, TypeAdapter[Any]] = {}


def opened_line(at: float) -> bytes:
    """The first of each process that writes to the file."""
    return _line([at, _OPENED, "", _FORMAT])


def closed_line(at: float) -> bytes:
    """The last, of one that came to an end by itself."""
    return _line([at, _CLOSED, ""])


def event_line(at: float, event: Event) -> bytes:
    stage, inner = (event.stage, event.event) if isinstance(event, InStage) else ("", event)
    return _line([at, type(inner).__name__, stage, *_parts(inner)])


class LogReader:
    """Reads what there is, and then what has come since. Times are seconds from the beginning of the first process;
    the time between two processes counts for nothing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._position = 0
        self._offset = 0.0
        self._last = 0.0
        self.began: float | None = None
        """Of the first process, in seconds since the epoch."""
        self.latest: float | None = None
        """Of the last event, in seconds since the epoch."""
        self.processes: list[float] = []
        """When each began."""
        self.is_closed = False
        """Whether the last process came to its end; one that was killed did not."""

    def read(self) -> Iterator[tuple[float, Event]]:
        """What is new. A line that is not whole yet is left for the next time; one that cannot be read is passed over.
        Raises FileNotFoundError where there is no log."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                yield from self._told(line)

    def _told(self, line: bytes) -> Iterator[tuple[float, Event]]:
        try:
            at, kind, stage, *parts = orjson.loads(line)
            if kind == _OPENED:
                self._opens(at)
            self.latest = at
            self._last = max(self._last, at - self._offset)
            if kind in (_OPENED, _CLOSED):
                self.is_closed = kind == _CLOSED
                return
            event = _event(kind, parts)
        except (ValueError, TypeError, IndexError, KeyError, ValidationError):
            return  # torn by a kill in the middle, or written by a newer version
        yield self._last, InStage(stage, event) if stage else event

    def _opens(self, at: float) -> None:
        if self.began is None:
            self.began = at
        self._offset = at - self._last
        self.processes.append(self._last)


def _parts(event: Event) -> Sequence[Any]:
    match event:
        case AgentStarted():
            return event.key, event.index
        case TurnStarted():
            return event.key, event.turn
        case TurnEnded():
            return (
                event.key, event.turn, _usage(event.usage), event.finish, _ms(event.queued), _ms(event.seconds),
                None if event.ttft is None else _ms(event.ttft), event.attempts,
            )  # fmt: skip
        case CallsStarted():
            return event.key, event.turn, event.tools
        case CallsEnded():
            return event.key, event.turn, _calls(event.calls), _ms(event.seconds)
        case Sampled():
            return [getattr(event, name) for name in Sampled.__slots__]
        case AgentFinished():
            return _finished(event)
        case _:
            return (event,)  # dataclasses are plain data to orjson


def _finished(event: AgentFinished) -> Sequence[Any]:
    result = event.result
    error = result.error
    said = as_text(result.output) if error is None else result.text
    return (
        result.index, result.key, event.resumed, said[:_LONGEST],
        None if error is None else (error.kind, error.message[:_LONGEST], error.retryable),
        _usage(result.usage), result.turns, _calls(result.tool_calls), _ms(result.timing.queued),
        _ms(result.timing.total), result.compactions,
    )  # fmt: skip


def _event(kind: str, parts: list[Any]) -> Event:
    if kind in _READ:
        return _READ[kind](*parts)
    adapter = _READ_RARE.get(kind)
    if adapter is None:
        [known] = [each for each in _RARE if each.__name__ == kind]
        adapter = _READ_RARE[kind] = TypeAdapter(known)
    event: Event = adapter.validate_python(parts[0])
    return event


def _read_turn(
    key: str, turn: int, usage: list[int], finish: Any, queued: float, seconds: float, ttft: float | None, tries: int
) -> Event:
    return TurnEnded(key, turn, Usage(*usage), finish, queued, seconds, ttft, tries)


def _read_calls(key: str, turn: int, calls: list[Any], seconds: float) -> Event:
    return CallsEnded(key, turn, _records(calls), seconds)


def _read_finished(
    index: int, key: str, resumed: bool, said: str, error: Any, usage: list[int], turns: int, calls: list[Any],
    queued: float, seconds: float, compactions: int,
) -> Event:  # fmt: skip
    reason = None if error is None else AgentError(ErrorKind(error[0]), error[1], error[2])
    result = AgentResult(
        index, key, output=said if reason is None else None, text=said, error=reason, usage=Usage(*usage), turns=turns,
        tool_calls=_records(calls), timing=Timing(queued, (), seconds), compactions=compactions,
    )  # fmt: skip
    return AgentFinished(result, resumed)


_READ: dict[str, Callable[..., Event]] = {
    "AgentStarted": AgentStarted,
    "TurnStarted": TurnStarted,
    "TurnEnded": _read_turn,
    "CallsStarted": lambda key, turn, tools: CallsStarted(key, turn, tuple(tools)),
    "CallsEnded": _read_calls,
    "Sampled": Sampled,
    "AgentFinished": _read_finished,
}


def _calls(calls: Sequence[CallRecord]) -> list[Any]:
    return [(each.name, each.ok, _ms(each.seconds), each.source) for each in calls]


def _records(calls: list[Any]) -> tuple[CallRecord, ...]:
    return tuple(CallRecord(name, "", ok, seconds, source) for name, ok, seconds, source in calls)


def _usage(usage: Usage) -> tuple[int, int, int]:
    return usage.input, usage.cached, usage.output


def _ms(seconds: float) -> float:
    return round(seconds, 4)


def _line(row: list[Any]) -> bytes:
    row[0] = round(row[0], 4)
    return orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
