"""What is said in a conversation.

The part of the prompt that all agents of a run share, byte for byte.

What some agent CLIs put before a system prompt.
"""

import re
from typing import Literal

from .fast_dataclass import dataclass
from .schema import JsonSchema

ToolSource = Literal["executed", "shared", "cached", "restored"]
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


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: JsonSchema


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Made once per run and compared by identity, so that a dialect serialises it once."""

    system: str
    tools: tuple[ToolSpec, ...] = ()
    cache_salt: str | None = None
    """Prompts with different salts never share what the server has cached."""


_NAME = r"x-(?:(?:anthropic|amz)-[a-z0-9-]+|[a-z0-9-]+-header|session-id)"
PREAMBLE = re.compile(rf"\A(?:[ \t]*{_NAME}[ \t]*:[^\n]*(?:\n|\Z)\s*)+", re.IGNORECASE)
"""Lines such as `x-anthropic-billing-header: cch=...` or `x-amz-date: ...`, other in every session, before the prompt
proper. Lines further down stay: there somebody may be writing about such headers (lint tells of them)."""
