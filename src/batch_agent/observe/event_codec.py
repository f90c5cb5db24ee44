"""Codec of the event log: converts events to lines of JSON and back.

A line is a list: the time (seconds since the epoch), the type of event, the stage of a flow ("" for other runs), and
the fields of the event. Inputs and answers are shortened; conversations and tool results are not included."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ..core.errors import ErrorKind
from ..core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    BudgetReported,
    CallbackFailed,
    CallsEnded,
    CallsStarted,
    EndpointChanged,
    Event,
    FlowStarted,
    ItemQueued,
    LimitChanged,
    LoadSampled,
    Notice,
    Paused,
    PrefixReported,
    RequestRetried,
    Resumed,
    RunStarted,
    SchedulingReported,
    StageEvent,
    Steered,
    ToolsUsed,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ..core.requests import FinishReason, Usage
from ..core.results import AgentError, AgentResult, CallRecord, Timing

MAX_TEXT = 300
"""Maximum characters of an answer or an error message."""
_MAX_RECORDED = 20_000
"""Maximum characters of a system prompt, or of another text in the description of a run."""
PARSE_ERRORS = (ValueError, TypeError, IndexError, ValidationError)
"""Errors for a truncated line or one of a newer version."""
_MAX_INT = 2**63 - 1

_RARE = (
    Notice, RunStarted, RequestRetried, LimitChanged, Paused, Resumed, ToolsUsed, BudgetReported,
    SchedulingReported, PrefixReported, AgentReassigned, FlowStarted, ItemQueued, CallbackFailed, Steered,
    EndpointChanged,
)  # fmt: skip
_LINE = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
_RARE_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def event_line(at: float, event: Event) -> bytes:
    """Encodes an event as a line. `at`: a result of `rounded`, to keep the line short."""
    stage = ""
    if event.__class__ is StageEvent:
        assert isinstance(event, StageEvent)
        stage, event = event.stage, event.event
    parts = _PARTS.get(event.__class__)
    row = (at, event.__class__.__name__, stage, *((event,) if parts is None else parts(event)))
    try:
        return orjson.dumps(row, default=str, option=_LINE)
    except TypeError:  # as in `to_json`
        return to_json(row) + b"\n"


def read_line(text: bytes) -> tuple[float, Event]:
    """The time and the event of a line. Raises one of PARSE_ERRORS."""
    at, kind, stage, *parts = orjson.loads(text)
    return at, read_event(kind, stage, parts)


def read_event(kind: str, stage: str, parts: Sequence[Any]) -> Event:
    """Builds an event from a parsed line. Raises one of PARSE_ERRORS."""
    read = _READ.get(kind)
    event = read(*parts) if read is not None else _rare(kind, parts)
    return StageEvent(stage, event) if stage else event


def line(row: list[Any]) -> bytes:
    """Encodes a row as a line. Its first element is a time."""
    row[0] = rounded(row[0])
    return to_json(row) + b"\n"


def to_json(value: Any) -> bytes:
    """A value as JSON. Lone surrogates and integers beyond 64 bits are replaced."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, or an integer beyond 64 bits
        return orjson.dumps(_json_safe(value))


def truncated(value: Any) -> Any:
    """The value as JSON data, with long texts cut."""
    if isinstance(value, str):
        more = f" ... ({len(value):,} characters)"
        return value if len(value) <= _MAX_RECORDED else value[: _MAX_RECORDED - len(more)] + more
    if is_dataclass(value):
        return {each.name: truncated(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): truncated(each) for name, each in value.items()}
    return [truncated(each) for each in value] if isinstance(value, list | tuple) else value


def _parts(event: Event) -> Sequence[Any]:
    parts = _PARTS.get(type(event))
    return parts(event) if parts is not None else (event,)


def _turn(event: TurnEnded) -> Sequence[Any]:
    ttft = event.ttft
    return (
        event.key, event.turn, event.usage.counts, event.finish, round(event.queued * 1e4) / 1e4,
        round(event.seconds * 1e4) / 1e4, None if ttft is None else round(ttft * 1e4) / 1e4, event.attempts,
    )  # fmt: skip


def _finished(event: AgentFinished) -> Sequence[Any]:
    result = event.result
    error, timing = result.error, result.timing
    return (
        result.index, result.key, event.resumed, answer_preview(result),
        None if error is None else (error.kind, error.message[:MAX_TEXT], error.retryable),
        result.usage.counts, result.turns, _calls(result.tool_calls) if event.resumed else (),  # else they are logged
        round(timing.queued * 1e4) / 1e4, round(timing.total * 1e4) / 1e4, result.compactions, result.finish,
        None if result.input is None else input_preview(result.input),
    )  # fmt: skip


def answer_preview(result: AgentResult) -> str:
    """The beginning of the answer: a text as it is, other answers as JSON. For a failed agent, the beginning of the
    last reply."""
    if result.error is None and isinstance(result.output, str):
        return result.output[:MAX_TEXT]
    if result.error is not None:
        return result.text[:MAX_TEXT]
    try:
        return orjson.dumps(result.output, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()[:MAX_TEXT]
    except TypeError:  # not representable as JSON
        return result.text[:MAX_TEXT]


def input_preview(value: Any) -> str:
    """The beginning of an input: a text as it is, a mapping as its fields and their values. Called for every agent, so
    it compares classes, which costs no call."""
    if value.__class__ is str:
        return value[:MAX_TEXT]
    if value.__class__ is not dict and not isinstance(value, Mapping):
        return _other_preview(value)
    text = ""
    for name, each in value.items():
        kind = each.__class__
        shown = each[:MAX_TEXT] if kind is str else each if kind is int or kind is float else input_preview(each)
        text = f"{text}, {name}: {shown}" if text else f"{name}: {shown}"
        if text[MAX_TEXT:]:
            break
    return text[:MAX_TEXT]


def _other_preview(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    try:
        return orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()[:MAX_TEXT]
    except TypeError:  # not representable as JSON
        return repr(value)[:MAX_TEXT]


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, fallback=repr)


def _rare(kind: str, parts: Sequence[Any]) -> Event:
    """Decodes rare events. Raises ValueError for an event type of a newer version."""
    adapter = _RARE_ADAPTERS.get(kind)
    if adapter is None:
        [known] = [each for each in _RARE if each.__name__ == kind]
        adapter = _RARE_ADAPTERS[kind] = TypeAdapter(known)
    event: Event = adapter.validate_python(parts[0])
    return event


def _read_turn(
    key: str, turn: int, usage: list[int], finish: Any, queued: float, seconds: float, ttft: float | None, tries: int
) -> Event:
    return TurnEnded(key, turn, Usage.of_counts(usage), finish, queued, seconds, ttft, tries)


def _read_calls(key: str, turn: int, calls: list[Any], seconds: float) -> Event:
    return CallsEnded(key, turn, _records(calls), seconds)


def _read_finished(
    index: int, key: str, resumed: bool, preview: str, error: Any, usage: list[int], turns: int, calls: list[Any],
    queued: float, seconds: float, compactions: int, finish: FinishReason | None, received: str | None,
) -> Event:  # fmt: skip
    """`finish`, `received`: missing in a log of an older version. An unknown finish reason of a newer version is
    ignored."""
    reason = None if error is None else _error(*error)
    finish = finish if finish in _FINISHES else None
    result = AgentResult(
        index, key, received, preview if reason is None else None, preview, reason, finish, Usage.of_counts(usage),
        turns=turns, tool_calls=_records(calls), timing=Timing(queued, (), seconds), compactions=compactions,
    )  # fmt: skip
    return AgentFinished(result, resumed)


def _error(kind: str, message: str, retryable: bool) -> AgentError:
    """Decodes an error. A kind that only a newer version knows becomes an internal error."""
    if kind in _KINDS:
        return AgentError(ErrorKind(kind), message, retryable)
    return AgentError(ErrorKind.INTERNAL, f"{kind}: {message}", retryable)


_KINDS = frozenset(ErrorKind)
_FINISHES = frozenset(get_args(FinishReason))
_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    AgentStarted: lambda event: (event.key, event.index),
    TurnStarted: lambda event: (event.key, event.turn),
    TurnEnded: _turn,
    CallsStarted: lambda event: (event.key, event.turn, event.tools),
    CallsEnded: lambda event: (event.key, event.turn, _calls(event.calls), rounded(event.seconds)),
    LoadSampled: lambda event: [getattr(event, name) for name in LoadSampled.__slots__],
    AgentFinished: _finished,
    RunStarted: lambda event: (truncated(event),),
    RequestRetried: lambda event: (replace(event, message=event.message[:MAX_TEXT]),),
    Notice: lambda event: (Notice(event.text[:MAX_TEXT]),),
    WorkerEvent: lambda event: (event.worker, type(event.event).__name__, *_parts(event.event)),
}
"""Encoders by event type. Events of other types are encoded whole: orjson serializes dataclasses."""
_READ: dict[str, Callable[..., Event]] = {
    "AgentStarted": AgentStarted,
    "TurnStarted": TurnStarted,
    "TurnEnded": _read_turn,
    "CallsStarted": lambda key, turn, tools: CallsStarted(key, turn, tuple(tools)),
    "CallsEnded": _read_calls,
    "LoadSampled": LoadSampled,
    "AgentFinished": _read_finished,
    "WorkerEvent": lambda worker, kind, *parts: WorkerEvent(worker, read_event(kind, "", parts)),
}


def _calls(calls: Sequence[CallRecord]) -> list[Any]:
    return [(each.name, each.ok, round(each.seconds * 1e4) / 1e4, each.source) for each in calls]


def _records(calls: list[Any]) -> tuple[CallRecord, ...]:
    return tuple(CallRecord(name, "", ok, seconds, source) for name, ok, seconds, source in calls)


def rounded(seconds: float) -> float:
    """Rounds to four decimals like round(seconds, 4), in a third of the time. Frequent events do it inline."""
    return round(seconds * 1e4) / 1e4


def _json_safe(value: Any) -> Any:
    """The value, with everything replaced that JSON cannot represent."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MAX_INT, min(value, _MAX_INT))
    if isinstance(value, Mapping):
        return {_json_safe(str(name)): _json_safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(each) for each in value]
    if is_dataclass(value):
        return {each.name: _json_safe(getattr(value, each.name)) for each in fields(value)}
    return value if value is None or isinstance(value, bool | float) else _json_safe(str(value))
