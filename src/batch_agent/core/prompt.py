"""The part of the prompt that all agents of a run share, byte for byte."""

from .quick import dataclass
from .schema import JsonSchema


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
