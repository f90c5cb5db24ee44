"""A stream of deltas, put together to a reply."""

from collections.abc import AsyncIterator, Callable
from typing import assert_never

from ..core.errors import BackendError, ErrorKind
from ..core.messages import ToolCall
from ..core.requests import CallDelta, Delta, Finished, ReasoningDelta, Reply, TextDelta


async def collect(deltas: AsyncIterator[Delta], clock: Callable[[], float]) -> tuple[Reply, float | None]:
    """The whole reply, and when its first delta came. Raises BackendError for a stream that was cut off."""
    text = reasoning = ""
    calls: tuple[ToolCall, ...] = ()
    first: float | None = None
    async for delta in deltas:
        if first is None:
            first = clock()
        match delta:
            case TextDelta():
                text += delta.text
            case Finished():
                return Reply(text, delta.reason, delta.usage, calls, reasoning), first
            case CallDelta():
                calls = (*calls, delta.call)
            case ReasoningDelta():
                reasoning += delta.text
            case _:
                assert_never(delta)
    raise BackendError(ErrorKind.CONNECTION, "The answer broke off before its end.")
