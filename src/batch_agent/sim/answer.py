"""Scripted answers of the simulated model, and their tokens."""

from typing import NamedTuple

from ..core.fast_dataclass import dataclass
from .faults import FaultOrder
from .tokens import CALL_CLOSING, END, TOKEN_BYTES, call_opening, pad, render_call


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """Text or calls, exactly as rendered in the prompt of the next turn, and the fault of the response."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    fault: FaultOrder | None = None


class SimReply(NamedTuple):
    """An answer as generated tokens, truncated at the request's token limit.

    `content` is the part of `data` that is shown as text. A truncated call is shown as text."""

    answer: SimAnswer
    data: bytes
    content: bytes
    finish_reason: str

    @property
    def tokens(self) -> int:
        return len(self.data) // TOKEN_BYTES

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.answer.calls if self.finish_reason != "length" else ()

    @property
    def text(self) -> str:
        return self.content.decode(errors="ignore") if self.finish_reason == "length" else self.answer.text

    def text_between(self, start: int, stop: int) -> str:
        """The part of the text in tokens `start` to `stop`."""
        return _cut(self.content, start * TOKEN_BYTES, stop * TOKEN_BYTES)

    def arguments_between(self, start: int, stop: int) -> list[tuple[int, bool, str]]:
        """For each call in tokens `start` to `stop`: its index, whether it begins there, its new arguments."""
        first, last = start * TOKEN_BYTES, stop * TOKEN_BYTES
        parts = []
        position = len(self.answer.text.encode())
        for index, call in enumerate(self.calls):
            opened = position + len(call_opening(call.name))
            body = call.arguments.encode()
            new = _cut(body, first - opened, last - opened)
            opens = first < opened <= last
            if opens or new:
                parts.append((index, opens, new))
            position = opened + len(body) + len(CALL_CLOSING)
        return parts


def reply_of(answer: SimAnswer, max_tokens: int) -> SimReply:
    content = answer.text.encode()
    calls = b"".join([render_call(call.name, call.arguments) for call in answer.calls])
    data = pad(content + calls) + END
    if len(data) > max_tokens * TOKEN_BYTES:
        data = data[: max_tokens * TOKEN_BYTES]
        return SimReply(answer, data, data, "length")
    return SimReply(answer, data, content, "tool_calls" if calls else "stop")


def _cut(data: bytes, start: int, stop: int) -> str:
    """Bytes `start` to `stop` as text, with both positions moved back to the beginning of a character."""
    if data.isascii():
        return data[max(0, start) : max(0, stop)].decode()
    return data[_boundary(data, start) : _boundary(data, stop)].decode(errors="ignore")


def _boundary(data: bytes, position: int) -> int:
    position = min(max(position, 0), len(data))
    while 0 < position < len(data) and data[position] & 0xC0 == 0x80:
        position -= 1
    return position
