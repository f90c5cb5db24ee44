"""What OpenCode tells of a session, as a conversation in our words."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ....core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from ....core.program_runtime import ProgramFailed, ProgramResult
from ....core.requests import NO_USAGE, Usage
from ....core.results import CallRecord

_REFUSED = "invalid"
"""The tool that stands for a call that could not be made."""


class CacheTokens(BaseModel):
    read: int = 0
    write: int = 0


class MessageTokens(BaseModel):
    input: int = 0
    """Without what was cached."""
    output: int = 0
    """Without what was thought."""
    reasoning: int = 0
    cache: CacheTokens = CacheTokens()

    @property
    def usage(self) -> Usage:
        return Usage(self.input + self.cache.read + self.cache.write, self.cache.read, self.output + self.reasoning)


class MessageTime(BaseModel):
    start: float = 0
    end: float | None = None


class ToolState(BaseModel):
    """How a tool call stands."""

    status: str = ""
    input: Any = None
    output: str = ""
    error: str = ""
    time: MessageTime = MessageTime()


class MessagePart(BaseModel):
    """A piece of a message. Kinds that say nothing to us have nothing in here."""

    type: str
    messageID: str = ""
    text: str = ""
    synthetic: bool = False
    tool: str = ""
    callID: str = ""
    state: ToolState = ToolState()
    tokens: MessageTokens = MessageTokens()


class MessageFailure(BaseModel):
    name: str = "an error"
    data: dict[str, Any] = Field(default_factory=dict)


class MessageInfo(BaseModel):
    role: str
    error: MessageFailure | None = None


class SessionMessage(BaseModel):
    """One message of a session."""

    info: MessageInfo
    parts: list[MessagePart] = Field(default_factory=list)


class ServerEvent(BaseModel):
    """One line of `opencode run --format json`."""

    sessionID: str = ""
    part: MessagePart | None = None
    error: MessageFailure | None = None


_MESSAGES = TypeAdapter(list[SessionMessage])


def read_messages(body: bytes) -> list[SessionMessage]:
    """Raises ProgramFailed."""
    try:
        return _MESSAGES.validate_json(body)
    except ValidationError as error:
        raise ProgramFailed(f"OpenCode's messages cannot be read: {_short(error)}.") from error


def read_event(line: bytes) -> ServerEvent | None:
    """None for a line that is none, such as a warning."""
    try:
        return ServerEvent.model_validate_json(line)
    except ValidationError:
        return None


def gathered(events: Iterable[ServerEvent]) -> list[SessionMessage]:
    """The messages that events are of, one for each turn of the model."""
    told: dict[str, SessionMessage] = {}
    for event in events:
        if event.part is not None:
            message = told.setdefault(event.part.messageID, SessionMessage(info=MessageInfo(role="assistant")))
            message.parts.append(event.part)
    return list(told.values())


def answered(before: Sequence[Message], messages: Sequence[SessionMessage]) -> ProgramResult:
    """`before` is what was said up to the last answer; `messages` are those since. Raises ProgramFailed if the last of
    them ended in an error."""
    turns = [each for each in messages if each.info.role == "assistant"]
    last = turns[-1] if turns else None
    if last is not None and last.info.error is not None:
        raise failed(last.info.error)
    transcript = [*before, *(said for each in messages for said in _said(each))]
    calls = [part for each in turns for part in each.parts if part.type == "tool"]
    return ProgramResult(
        text=_text(last) if last is not None else "",
        transcript=tuple(transcript),
        calls=tuple(map(_record, calls)),
        usage=sum((part.tokens.usage for each in turns for part in each.parts if part.type == "step-finish"), NO_USAGE),
        turns=len(turns),
    )


def failed(failure: MessageFailure) -> ProgramFailed:
    """In OpenCode's own words."""
    said = str(failure.data.get("message") or failure.name)
    is_passing = failure.data.get("isRetryable") is True or failure.name == "MessageAbortedError"
    return ProgramFailed(f"OpenCode: {said}", retryable=is_passing)


def _said(message: SessionMessage) -> list[Message]:
    text = _text(message)
    if message.info.role == "user":
        return [User(text)]
    results = tuple(_result(part) for part in message.parts if part.type == "tool")
    thoughts = tuple(Thought(part.text) for part in message.parts if part.type == "reasoning" and part.text)
    said = Assistant(text, tuple(result.call for result in results), thoughts)
    return [said, ToolResults(results)] if results else [said]


def _text(message: SessionMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if part.type == "text" and part.text and not part.synthetic)


def _record(part: MessagePart) -> CallRecord:
    result = _result(part)
    return CallRecord(result.call.name, result.call.arguments, not result.is_error, result.seconds)


def _result(part: MessagePart) -> ToolResult:
    state = part.state
    asked = state.input if isinstance(state.input, dict) else {}
    is_refused = part.tool == _REFUSED
    name = str(asked.get("tool", part.tool)) if is_refused else part.tool
    arguments = "{}" if is_refused else orjson.dumps(state.input if state.input is not None else {}).decode()
    seconds = max(0.0, ((state.time.end or state.time.start) - state.time.start) / 1000)
    is_error = is_refused or state.status != "completed"
    return ToolResult(ToolCall(part.callID, name, arguments), state.output or state.error, is_error, seconds)


def _short(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'its beginning'}"
