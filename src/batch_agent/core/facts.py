"""The durable story of one agent. Replaying its facts rebuilds its conversation byte for byte."""

from dataclasses import dataclass

from .messages import ToolResult
from .quick import quick
from .requests import Reply


@quick
@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered a turn."""

    reply: Reply
    queued: float = 0.0
    """Seconds that the turn waited for a slot."""
    seconds: float = 0.0
    ttft: float | None = None
    """Seconds to the first token; None when the turn was not streamed."""
    attempts: int = 1


@quick
@dataclass(frozen=True, slots=True)
class Returned:
    """The calls of a turn were answered."""

    results: tuple[ToolResult, ...]
    seconds: float = 0.0


Fact = Replied | Returned
