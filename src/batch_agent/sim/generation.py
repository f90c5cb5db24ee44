"""A parsed request for generation, ready to run."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..core.fast_dataclass import dataclass
from .answer import SimReply
from .faults import FaultOrder
from .kv_engine.sequence import Sequence as EngineSequence
from .openai_responses import OpenAIBytes


@dataclass(frozen=True, slots=True)
class PromptFault:
    """The fault that the prompt at `index` requests. It affects the whole request."""

    index: int
    prompt: bytes
    order: FaultOrder


class ResponseEncoder(Protocol):
    """Encoder of a non-streamed response, and of its errors."""

    @property
    def content_type(self) -> bytes: ...

    def plain(self, replies: Sequence[SimReply], usage: dict[str, Any]) -> bytes: ...

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes: ...


class Generation(NamedTuple):
    """The prompts of one HTTP request as sequences, with the replies that they generate, in the same order.

    `continuous_usage`: each event has the usage of its answer so far."""

    encoder: OpenAIBytes
    replies: Sequence[SimReply]
    sequences: list[EngineSequence]
    prompt_faults: list[PromptFault]
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    reports_cached: bool
    chunk_tokens: int
    """Tokens in one event."""
    foreign_encoder: ResponseEncoder | None = None
    """Encoder of a response in another format than OpenAI's, which is never streamed token by token."""

    @property
    def body_encoder(self) -> ResponseEncoder:
        return self.foreign_encoder or self.encoder
