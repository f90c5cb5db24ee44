"""One class per reaction of the caller."""

from enum import StrEnum
from typing import Any

from .safe_text import safe_text


class ErrorKind(StrEnum):
    """Why an agent or a request failed; stable strings, safe to group by."""

    BAD_INPUT = "bad_input"
    """This input cannot be put into the task."""
    INPUTS = "inputs"
    """The iterator of the inputs raised: there are no more of them."""
    OUT = "out"
    """The file of the results (`out=`) cannot be written any more."""
    BAD_REQUEST = "bad_request"
    """The server refused the request; sending it again will not help."""
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation does not fit the model's window."""
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    """5xx, or an answer that is not of the protocol."""
    UNAVAILABLE = "unavailable"
    """Nobody is there to answer: no connection can be made, or a gateway says so. It concerns every agent."""
    CONNECTION = "connection"
    """The connection broke before the answer was whole."""
    TLS = "tls"
    """The server's certificate cannot be trusted, or no secure connection can be agreed upon."""
    TURN_TIMEOUT = "turn_timeout"
    AGENT_TIMEOUT = "agent_timeout"
    TRUNCATED = "truncated"
    """The answer was cut off by the token limit."""
    REFUSED = "refused"
    """The model declined to answer."""
    INVALID_OUTPUT = "invalid_output"
    """No answer fitted the output schema, not even after asking again."""
    MAX_TURNS = "max_turns"
    BUDGET = "budget"
    """The run may not spend more, or its deadline has passed."""
    PROGRAM = "program"
    """A program that did the work of an agent failed; the message has its last words."""
    CALLBACK = "callback"
    """A function of a flow raised: what it was given, and where, is in the message."""
    INTERNAL = "internal"
    """A bug, ours or a tool adapter's; the message says where."""


RETRYABLE = frozenset(
    {
        ErrorKind.RATE_LIMITED,
        ErrorKind.SERVER,
        ErrorKind.UNAVAILABLE,
        ErrorKind.CONNECTION,
        ErrorKind.TURN_TIMEOUT,
    }
)


_REFUSED = frozenset({400, 401, 402, 403, 404, 405, 413, 415, 422, 429, 503, 529})
"""Statuses of servers that have not begun to work on a request."""
_NOT_SENT = frozenset(
    {
        ErrorKind.BAD_REQUEST,
        ErrorKind.AUTH,
        ErrorKind.NOT_FOUND,
        ErrorKind.CONTEXT_OVERFLOW,
        ErrorKind.RATE_LIMITED,
        ErrorKind.UNAVAILABLE,
        ErrorKind.TLS,
        ErrorKind.BUDGET,
    }
)
"""Failures without a status: of requests that reached nobody, or were refused."""


class BatchAgentError(Exception):
    """Everything that this library raises on purpose. Can be pickled and copied, with its attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        """Safe to print: messages quote what servers, models and files say."""
        return safe_text(super().__str__())


def _restored(cls: type[BatchAgentError], args: tuple[Any, ...]) -> BatchAgentError:
    """An exception without a call of its constructor, which may take more than its arguments."""
    error = cls.__new__(cls)
    error.args = args
    return error


class SpecError(BatchAgentError, ValueError):
    """The run cannot start as it was described. Nothing was sent."""


class PlanMismatch(SpecError):
    """The checkpoint holds answers to another question; the message says what changed, and both ways on."""

    def __init__(self, message: str, changes: str = "") -> None:
        super().__init__(message)
        self.changes = changes
        """In words."""


class BackendError(BatchAgentError):
    """A request failed, or a backend cannot be used. Whether another try may help follows from its kind."""

    def __init__(
        self, kind: ErrorKind, message: str, *, retry_after: float | None = None, status: int | None = None
    ) -> None:
        """`status`: the server's HTTP status, where it answered at all; 200 for an answer that is of no use."""
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.status = status

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE

    @property
    def may_be_billed(self) -> bool:
        """Whether the server may have generated something for the request that failed."""
        if self.status is None:
            return self.kind not in _NOT_SENT
        return not (self.status in _REFUSED or 300 <= self.status < 400)


class StoreError(BatchAgentError):
    """The checkpoint cannot be opened or written. What was already stored stays valid."""


class LeaseLost(StoreError):
    """Another worker goes on with this agent: what this one has to say of it is not wanted any more."""
