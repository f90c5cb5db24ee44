"""Reply assembly: collects a stream of deltas into a reply."""

from collections.abc import AsyncIterator, Callable
from typing import assert_never

from ..core.errors import BackendError, ErrorKind
from ..core.messages import Thought, ToolCall
from ..core.requests import CallDelta, Delta, Finished, ReasoningDelta, Reply, TextDelta

OnCall = Callable[[ToolCall], None]
"""Called with each tool call as soon as it is complete, while the model still generates."""


async def collect(
    deltas: AsyncIterator[Delta], clock: Callable[[], float] | None, on_call: OnCall | None = None
) -> tuple[Reply, float | None]:
    """The complete reply, and the time of its first delta if a clock is given. Raises BackendError for a truncated
    stream."""
    text = thinking = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    first: float | None = None
    async for delta in deltas:
        if first is None and clock is not None:
            first = clock()
        match delta:
            case TextDelta():
                text += delta.text
            case Finished():
                if thinking:
                    thoughts = (*thoughts, Thought(thinking))
                return Reply(text, delta.reason, delta.usage.of_request, calls, thoughts, delta.tokens), first
            case CallDelta():
                calls = (*calls, delta.call)
                if on_call is not None:
                    on_call(delta.call)
            case ReasoningDelta():
                thinking += delta.text
                if delta.signature or delta.redacted:
                    thoughts = (*thoughts, Thought(thinking, delta.signature, delta.redacted))
                    thinking = ""
            case _:
                assert_never(delta)
    raise BackendError(ErrorKind.CONNECTION, "The response was truncated: the stream ended before it was complete.")
