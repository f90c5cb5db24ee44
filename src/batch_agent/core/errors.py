"""Errors of the library: one class per reaction of the caller."""

from enum import StrEnum
from typing import Any

from .safe_text import safe_text


class ErrorKind(StrEnum):
    """Why an agent or a request failed; stable strings, safe to group by."""

    BAD_INPUT = "bad_input"
    """The input cannot be rendered into the task, or one of its images cannot be read."""
    INPUTS = "inputs"
    """The iterator of the inputs raised."""
    OUT = "out"
    """The results file (`out=`) can no longer be written."""
    BAD_REQUEST = "bad_request"
    """The server rejected the request; a retry does not help."""
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation does not fit the context window."""
    RATE_LIMITED = "rate_limited"
    CAPACITY = "capacity"
    """The lane flex had no capacity for the request. It is sent again later, at last in the lane standard."""
    SERVER = "server"
    """Status 5xx, or a response that violates the protocol."""
    UNAVAILABLE = "unavailable"
    """The server cannot be reached, or a gateway reports that. It concerns every agent."""
    CONNECTION = "connection"
    """The connection was lost before the response was complete."""
    TLS = "tls"
    """The certificate of the server is not trusted, or the TLS handshake failed."""
    TURN_TIMEOUT = "turn_timeout"
    AGENT_TIMEOUT = "agent_timeout"
    TRUNCATED = "truncated"
    """The answer was truncated by the token limit."""
    REFUSED = "refused"
    """The model declined to answer."""
    INVALID_OUTPUT = "invalid_output"
    """No answer matched the output schema, also after retries."""
    MAX_TURNS = "max_turns"
    BUDGET = "budget"
    """The budget of the run is used up, or its deadline has passed."""
    CANCELLED = "cancelled"
    """The agent was cancelled by the user (`batch-agent ctl --cancel`). A resume does not run it again."""
    PROGRAM = "program"
    """The program of an agent failed; the message has the end of its output."""
    CALLBACK = "callback"
    """A callback of a flow raised; the message names the callback and the item."""
    RUNNING = "running"
    """The agent has no result yet. This and the next two occur only in tables made from a checkpoint."""
    INTERRUPTED = "interrupted"
    """The run ended before the agent did; the next run continues it."""
    NOT_STARTED = "not_started"
    """The run ended before the agent was started."""
    INTERNAL = "internal"
    """A bug in this library or a tool adapter; the message says where."""


RETRYABLE = frozenset(
    {
        ErrorKind.RATE_LIMITED,
        ErrorKind.SERVER,
        ErrorKind.UNAVAILABLE,
        ErrorKind.CONNECTION,
        ErrorKind.TURN_TIMEOUT,
    }
)


_REFUSED = frozenset({400, 401, 402, 403, 404, 405, 413, 415, 422, 429, 498, 503, 529})
"""Statuses of requests that the server did not begin to process."""
_NOT_SENT = frozenset(
    {
        ErrorKind.BAD_INPUT,
        ErrorKind.BAD_REQUEST,
        ErrorKind.AUTH,
        ErrorKind.NOT_FOUND,
        ErrorKind.CONTEXT_OVERFLOW,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CAPACITY,
        ErrorKind.UNAVAILABLE,
        ErrorKind.TLS,
        ErrorKind.BUDGET,
    }
)
"""Failures without a status, of requests that did not reach the server or were rejected."""


class BatchAgentError(Exception):
    """Base class of the errors of this library. They can be pickled and copied, with their attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        """Safe to print: messages quote text of servers, models and files."""
        return safe_text(super().__str__())


def _restored(cls: type[BatchAgentError], args: tuple[Any, ...]) -> BatchAgentError:
    """Exception restored without a call of its constructor, which may take more than `args`."""
    error = cls.__new__(cls)
    error.args = args
    return error


class SpecError(BatchAgentError, ValueError):
    """The run cannot start with these options or inputs. No request was sent."""


class PlanMismatch(SpecError):
    """The checkpoint belongs to another plan; the message says what changed and what to do."""

    def __init__(self, message: str, changes: str = "") -> None:
        super().__init__(message)
        self.changes = changes
        """The differences, as text for the user."""


class BackendError(BatchAgentError):
    """A request failed, or a backend cannot be used. Its kind decides whether a retry may help."""

    def __init__(
        self, kind: ErrorKind, message: str, *, retry_after: float | None = None, status: int | None = None
    ) -> None:
        """`status`: HTTP status of the response, if there was one; 200 for a response that cannot be used."""
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.status = status

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE

    @property
    def may_be_billed(self) -> bool:
        """Whether the server may have generated tokens for the failed request."""
        if self.status is None:
            return self.kind not in _NOT_SENT
        return not (self.status in _REFUSED or 300 <= self.status < 400)


class AnswerLimitChanged(BackendError):
    """The limit of the answer that was derived from the budget did not fit the request. It may be sent again at once:
    then it has another limit."""


class WebPage(BackendError):
    """A web page came with status 200 instead of an answer. If no request was ever answered, the address is wrong."""


class StoreError(BatchAgentError):
    """The checkpoint cannot be opened or written. Stored data stays valid."""


class LeaseLost(StoreError):
    """Another worker has taken over this agent: writes of this one are refused."""
