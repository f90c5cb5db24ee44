"""A request ready to run."""

from collections.abc import Sequence
from typing import NamedTuple

from ..core.fast_dataclass import dataclass
from .answer import SimReply
from .faults import FaultOrder
from .kv_engine.sequence import Sequence as EngineSequence
from .openai import OpenAIBytes


@dataclass(frozen=True, slots=True)
class Poison:
    """A prompt that asks for a fault, which befalls the whole request; `index` is its place in it."""

    index: int
    prompt: bytes
    order: FaultOrder


class Generation(NamedTuple):
    """The prompts of one HTTP request as sequences, with the replies that they will generate, in the same order.

    `continuous_usage` adds the usage of one answer to each of its events.
    """

    wire: OpenAIBytes
    replies: Sequence[SimReply]
    sequences: list[EngineSequence]
    poisons: list[Poison]
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    tells_cached: bool
    chunk_tokens: int
    """Tokens in one event."""
