"""OpenCode's session messages, converted to ours."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ....core.messages import Assistant, Message, Thought, ToolCall, ToolResult, ToolResults, User
from ....core.program_runtime import ProgramFailed, ProgramResult
from ....core.requests import NO_USAGE, Usage
from ....core.results import CallRecord

_INVALID_TOOL = "invalid"
"""OpenCode's name for an impossible call."""


class CacheTokens(BaseModel):
    read: int = 0
    write: int = 0


class MessageTokens(BaseModel):
    input: int = 0
    """Without cached tokens."""
    output: int = 0
    """Without reasoning tokens."""
    reasoning: int = 0
    cache: CacheTokens = CacheTokens()

    @property
    def usage(self) -> Usage:
        prompt = self.input + self.cache.read + self.cache.write
        return Usage(prompt, self.cache.read, self.output + self.reasoning, self.cache.write).of_request


class MessageTime(BaseModel):
    start: float = 0
    end: float | None = None


class ToolState(BaseModel):
    """State of a tool call."""

    status: str = ""
    input: Any = None
    output: str = ""
    error: str = ""
    time: MessageTime = MessageTime()


class MessagePart(BaseModel):
    """Part of a message, with only the fields that are used here."""

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
    """An event; None for other lines, such as warnings."""
    try:
        return ServerEvent.model_validate_json(line)
    except ValidationError:
        return None


def group_by_message(events: Iterable[ServerEvent]) -> list[SessionMessage]:
    """Groups the parts in events into messages, one per turn of the model."""
    found: dict[str, SessionMessage] = {}
    for event in events:
        if event.part is not None:
            message = found.setdefault(event.part.messageID, SessionMessage(info=MessageInfo(role="assistant")))
            message.parts.append(event.part)
    return list(found.values())


def to_result(history: Sequence[Message], messages: Sequence[SessionMessage]) -> ProgramResult:
    """`history`: the transcript up to the last answer. `messages`: the messages since then. Raises ProgramFailed if the
    last one ended in an error."""
    turns = [each for each in messages if each.info.role == "assistant"]
    last = turns[-1] if turns else None
    if last is not None and last.info.error is not None:
        raise to_failure(last.info.error)
    transcript = [*history, *(converted for each in messages for converted in _converted(each))]
    calls = [part for each in turns for part in each.parts if part.type == "tool"]
    return ProgramResult(
        text=_text(last) if last is not None else "",
        transcript=tuple(transcript),
        calls=tuple(map(_record, calls)),
        usage=sum((part.tokens.usage for each in turns for part in each.parts if part.type == "step-finish"), NO_USAGE),
        turns=len(turns),
    )


def to_failure(failure: MessageFailure) -> ProgramFailed:
    """The failure with OpenCode's own message."""
    converted = str(failure.data.get("message") or failure.name)
    is_retryable = failure.data.get("isRetryable") is True or failure.name == "MessageAbortedError"
    return ProgramFailed(f"OpenCode: {converted}", retryable=is_retryable)


def _converted(message: SessionMessage) -> list[Message]:
    text = _text(message)
    if message.info.role == "user":
        return [User(text)]
    results = tuple(_result(part) for part in message.parts if part.type == "tool")
    thoughts = tuple(Thought(part.text) for part in message.parts if part.type == "reasoning" and part.text)
    converted = Assistant(text, tuple(result.call for result in results), thoughts)
    return [converted, ToolResults(results)] if results else [converted]


def _text(message: SessionMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if part.type == "text" and part.text and not part.synthetic)


def _record(part: MessagePart) -> CallRecord:
    result = _result(part)
    return CallRecord(result.call.name, result.call.arguments, not result.is_error, result.seconds)


def _result(part: MessagePart) -> ToolResult:
    state = part.state
    arguments_in = state.input if isinstance(state.input, dict) else {}
    is_invalid = part.tool == _INVALID_TOOL
    name = str(arguments_in.get("tool", part.tool)) if is_invalid else part.tool
    arguments = "{}" if is_invalid else orjson.dumps(state.input if state.input is not None else {}).decode()
    seconds = max(0.0, ((state.time.end or state.time.start) - state.time.start) / 1000)
    is_error = is_invalid or state.status != "completed"
    return ToolResult(ToolCall(part.callID, name, arguments), state.output or state.error, is_error, seconds)


def _short(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'its beginning'}"
