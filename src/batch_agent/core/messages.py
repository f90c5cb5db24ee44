"""What is said in a conversation."""

from typing import Literal

from .quick import dataclass

ToolSource = Literal["executed", "shared", "cached", "recalled"]
"""Where a result came from: this call's own execution, another's that was under way, a result that was kept, or the
checkpoint."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for. `arguments` is the model's own text: re-serialising it would move the prefix."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave. A failure is a result too: the model reads it and goes on."""

    call: ToolCall
    content: str
    is_error: bool = False
    seconds: float = 0.0
    source: ToolSource = "executed"


@dataclass(frozen=True, slots=True)
class User:
    text: str
    shared: int = 0
    """Characters at its beginning that other agents' messages also begin with."""


@dataclass(frozen=True, slots=True)
class Thought:
    """What a model thought before it spoke. Where the provider signs it, it must come back unchanged."""

    text: str = ""
    signature: str = ""
    redacted: str = ""
    """In place of a text: the provider's own, unreadable to us."""


@dataclass(frozen=True, slots=True)
class Assistant:
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResults:
    results: tuple[ToolResult, ...]


Message = User | Assistant | ToolResults
