"""A protocol in which programs ask, and are answered."""

from collections.abc import Mapping
from typing import Any, Protocol

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import CompletionRequest
from ...core.requests import Reply
from .errors import GatewayError


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request, and how its answer is to come."""

    asked: CompletionRequest
    model: str = ""
    """As the program calls it: it hears the same name. There is but one model."""
    stream: bool = False
    counts: bool = True
    """Whether a stream tells the usage at its end."""


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """What an answer says beside the reply."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    counts: bool = True


class ApiProtocol(Protocol):
    """Pure: bytes and data in, bytes and data out."""

    @property
    def waiting(self) -> bytes:
        """A part of a stream that means nothing but that there is more to come."""
        ...

    def read(self, body: Mapping[str, Any]) -> ParsedRequest:
        """Raises Refused, and RecursionError for data that is nested too deep."""
        ...

    def reply(self, reply: Reply, envelope: ResponseMeta) -> bytes: ...

    def events(self, reply: Reply, envelope: ResponseMeta) -> bytes:
        """The whole stream."""
        ...

    def refusal(self, refused: GatewayError) -> bytes: ...

    def refusal_event(self, refused: GatewayError) -> bytes:
        """The end of a stream that has begun."""
        ...
