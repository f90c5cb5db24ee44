"""Protocol for the APIs that the gateway serves."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import CompletionRequest
from ...core.requests import Reply
from .gateway_error import GatewayError


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request, and the form of the requested response."""

    request: CompletionRequest
    model: str = ""
    """The model name in the request, which the response repeats. Every name stands for the run's model."""
    stream: bool = False
    counts: bool = True
    """Whether the stream ends with an event for the usage."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The raw request, for an API whose responses repeat parts of it."""


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """Fields of a response that are not part of the reply."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    counts: bool = True
    body: Mapping[str, Any] = field(default_factory=dict)


class ApiProtocol(Protocol):
    """Parser and encoder of one API. Pure: bytes and data in, bytes and data out."""

    @property
    def keep_alive(self) -> bytes:
        """Keep-alive chunk of a stream."""
        ...

    def read(self, body: Mapping[str, Any]) -> ParsedRequest:
        """Parses a request. Raises GatewayError, and RecursionError for data that is nested too deep."""
        ...

    def reply(self, reply: Reply, meta: ResponseMeta) -> bytes: ...

    def events(self, reply: Reply, meta: ResponseMeta) -> bytes:
        """Encodes a whole stream."""
        ...

    def error(self, error: GatewayError) -> bytes: ...

    def error_event(self, error: GatewayError, meta: ResponseMeta) -> bytes:
        """Encodes an error as the end of a stream that has begun."""
        ...
