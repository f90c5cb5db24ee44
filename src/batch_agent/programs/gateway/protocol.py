"""A protocol in which programs ask, and are answered."""

from collections.abc import Mapping
from typing import Any, Protocol

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import Asked
from ...core.requests import Reply
from .errors import Refused


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, and how its answer is to come."""

    asked: Asked
    model: str = ""
    """As the program calls it: it hears the same name. There is but one model."""
    stream: bool = False
    counts: bool = True
    """Whether a stream tells the usage at its end."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an answer says beside the reply."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    counts: bool = True


class Words(Protocol):
    """Pure: bytes and data in, bytes and data out."""

    @property
    def waiting(self) -> bytes:
        """A part of a stream that means nothing but that there is more to come."""
        ...

    def read(self, body: Mapping[str, Any]) -> Wanted:
        """Raises Refused, and RecursionError for data that is nested too deep."""
        ...

    def reply(self, reply: Reply, envelope: Envelope) -> bytes: ...

    def events(self, reply: Reply, envelope: Envelope) -> bytes:
        """The whole stream."""
        ...

    def refusal(self, refused: Refused) -> bytes: ...

    def refusal_event(self, refused: Refused) -> bytes:
        """The end of a stream that has begun."""
        ...
