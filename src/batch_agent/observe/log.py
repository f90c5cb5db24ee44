"""The events of a run in a file, one on each line: what the report and the live page are made from.

A line is a JSON list: when it was (seconds since the epoch), what it is, the stage of a flow ("" elsewhere), and its
parts. What the agents read and said is not in it: that is in the checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ..core.errors import ErrorKind, StoreError
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

FILE = "events.jsonl"
_FORMAT = 1
_OPENED, _CLOSED = "Opened", "Closed"
LONGEST = 300
"""Characters of an answer or of an error."""
_LARGEST = 2**63 - 1

_RARE = (
    Notice, RunStarted, RequestRetried, LimitChanged, Paused, Resumed, ToolsUsed, Spent, Scheduled, Shared,
    FlowStarted, Queued,
)  # fmt: skip
_READ_RARE: dict[str, TypeAdapter[Any]] = {}


def opened_line(at: float) -> bytes:
    """The first of each process that writes to the file."""
    return _line([at, _OPENED, "", _FORMAT])


def closed_line(at: float, opened: float) -> bytes:
    """The last, of one that came to an end by itself. `opened`: when it began; another may have begun since."""
    return _line([at, _CLOSED, "", rounded(opened)])


def event_line(at: float, event: Event) -> bytes:
    stage, inner = (event.stage, event.event) if isinstance(event, InStage) else ("", event)
    kind = type(inner)
    parts = _PARTS.get(kind)
    return _line([at, kind.__name__, stage, *(parts(inner) if parts else (inner,))])


class LogReader:
    """Reads what there is, and then what has come since. Times are seconds from the beginning of the first process;
    the time between two processes counts for nothing, and a clock that is set back stands still for a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE
        self._head = b""
        self._position = 0
        self._offset = 0.0
        self._last = 0.0
        self._opened: float | None = None
        self.began: float | None = None
        """Of the first process, in seconds since the epoch."""
        self.processes: list[float] = []
        """When each began."""
        self.is_closed = False
        """Whether the last process came to its end; one that was killed did not."""

    @property
    def seconds(self) -> float:
        """When the last event was."""
        return self._last

    def is_replaced(self) -> bool:
        """Whether the file is another one than that which was read. Raises FileNotFoundError where there is none."""
        with self._path.open("rb") as file:
            return file.read(len(self._head)) != self._head

    def read(self) -> Iterator[tuple[float, Event]]:
        """What is new. A line that is not whole yet is left for the next time; one that cannot be read is passed over.
        Raises FileNotFoundError where there is no log, and StoreError for one of a newer version."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if not self._position:
                    self._head = line
                try:
                    at, kind, stage, *parts = orjson.loads(line)
                    read = _READ.get(kind)
                    event = read(*parts) if read is not None else self._rare(at, kind, parts)
                    if event is not None:
                        self._tick(at)
                except (ValueError, TypeError, IndexError, ValidationError):
                    event = None  # torn by a kill in the middle, or written by a newer version
                self._position += len(line)
                if event is not None:
                    yield self._last, InStage(stage, event) if stage else event

    def _rare(self, at: float, kind: str, parts: list[Any]) -> Event | None:
        """None for what is no event. Raises StoreError, and other errors for a line that cannot be read."""
        if kind not in (_OPENED, _CLOSED):
            return _rare(kind, parts)
        self._turns(kind, at, *parts)
        return None

    def _tick(self, at: float) -> None:
        since = at - self._offset
        if since >= self._last:
            self._last = since
        else:
            self._offset = at - self._last

    def _turns(self, kind: str, at: float, *parts: Any) -> None:
        if kind == _CLOSED:
            self._tick(at)
            self.is_closed = not parts or parts[0] == self._opened
            return
        if parts[0] > _FORMAT:
            raise StoreError(
                f"The log in {str(self._folder)!r} was written by a newer version of batch-agent. Upgrade batch-agent."
            )
        if self.began is None:
            self.began = at
        self._opened, self.is_closed = at, False
        self._offset = at - self._last
        self.processes.append(self._last)


def _turn(event: TurnEnded) -> Sequence[Any]:
    return (
        event.key, event.turn, _usage(event.usage), event.finish, rounded(event.queued), rounded(event.seconds),
        None if event.ttft is None else rounded(event.ttft), event.attempts,
    )  # fmt: skip


def _finished(event: AgentFinished) -> Sequence[Any]:
    result = event.result
    error = result.error
    return (
        result.index, result.key, event.resumed, said(result),
        None if error is None else (error.kind, error.message[:LONGEST], error.retryable),
        _usage(result.usage), result.turns, _calls(result.tool_calls) if event.resumed else (),  # else they were told
        rounded(result.timing.queued), rounded(result.timing.total), result.compactions,
    )  # fmt: skip


def said(result: AgentResult) -> str:
    """The beginning of the answer, as JSON where it is no text; else of what the model said last."""
    if result.error is None and isinstance(result.output, str):
        return result.output[:LONGEST]
    if result.error is not None:
        return result.text[:LONGEST]
    try:
        return orjson.dumps(result.output, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()[:LONGEST]
    except TypeError:  # what JSON cannot hold
        return result.text[:LONGEST]


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, fallback=repr)


def _rare(kind: str, parts: list[Any]) -> Event:
    """Raises ValueError for a kind that a newer version has."""
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
    reason = None if error is None else _error(*error)
    result = AgentResult(
        index, key, output=said if reason is None else None, text=said, error=reason, usage=Usage(*usage), turns=turns,
        tool_calls=_records(calls), timing=Timing(queued, (), seconds), compactions=compactions,
    )  # fmt: skip
    return AgentFinished(result, resumed)


def _error(kind: str, message: str, retryable: bool) -> AgentError:
    """One of a kind that a newer version has is a failure all the same."""
    if kind in _KINDS:
        return AgentError(ErrorKind(kind), message, retryable)
    return AgentError(ErrorKind.INTERNAL, f"{kind}: {message}", retryable)


_KINDS = frozenset(ErrorKind)
_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    AgentStarted: lambda event: (event.key, event.index),
    TurnStarted: lambda event: (event.key, event.turn),
    TurnEnded: _turn,
    CallsStarted: lambda event: (event.key, event.turn, event.tools),
    CallsEnded: lambda event: (event.key, event.turn, _calls(event.calls), rounded(event.seconds)),
    Sampled: lambda event: [getattr(event, name) for name in Sampled.__slots__],
    AgentFinished: _finished,
    RequestRetried: lambda event: (replace(event, message=event.message[:LONGEST]),),
    Notice: lambda event: (Notice(event.text[:LONGEST]),),
}
"""Of all others, the event itself: dataclasses are plain data to orjson."""
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
    return [(each.name, each.ok, rounded(each.seconds), each.source) for each in calls]


def _records(calls: list[Any]) -> tuple[CallRecord, ...]:
    return tuple(CallRecord(name, "", ok, seconds, source) for name, ok, seconds, source in calls)


def _usage(usage: Usage) -> tuple[int, int, int]:
    return usage.input, usage.cached, usage.output


def rounded(seconds: float) -> float:
    """To a tenth of a millisecond, as they are kept: as round(seconds, 4), in a third of the time."""
    return round(seconds * 1e4) / 1e4


def _line(row: list[Any]) -> bytes:
    row[0] = rounded(row[0])
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a character, or a number without bounds
        return orjson.dumps(_sound(row), option=orjson.OPT_APPEND_NEWLINE)


def _sound(value: Any) -> Any:
    """The same, as far as JSON can hold it."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_LARGEST, min(value, _LARGEST))
    if isinstance(value, Mapping):
        return {_sound(str(name)): _sound(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(each) for each in value]
    if is_dataclass(value):
        return {each.name: _sound(getattr(value, each.name)) for each in fields(value)}
    return value if value is None or isinstance(value, bool | float) else _sound(str(value))
