"""Response of a pool to one prompt."""

from collections.abc import Mapping

from ..core.errors import ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, FinishReason, Usage

NO_END = "The response ended before the answer was complete."
_INCOMPLETE: Mapping[FinishReason, tuple[ErrorKind, str]] = {
    "length": (ErrorKind.TRUNCATED, "The answer was cut off at max_tokens."),
    "refusal": (ErrorKind.REFUSED, "The model, or a filter behind it, declined to answer."),
}


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a prompt, or an error. An answer that was cut off at max_tokens has both: an error, and the text
    so far."""

    index: int
    """The index of its prompt."""
    text: str = ""
    error: str | None = None
    kind: ErrorKind | None = None
    """The kind of the error."""
    finish: FinishReason | None = None
    usage: Usage = NO_USAGE
    """Zero if the server does not report usage per prompt."""
    endpoint: str = ""
    agent_index: int = -1
    """The index of the endpoint in the called pool; -1: none."""
    left_out: tuple["Response", ...] = ()
    """For an answer that merges others: the responses without an answer, which are missing from it. Their `index` is
    that of the agent or leaf."""

    @property
    def success(self) -> bool:
        """Whether the answer is complete."""
        return self.error is None


def response_of(
    index: int, text: str, finish: FinishReason, usage: Usage | None, endpoint: str, agent_index: int
) -> Response:
    """The response for a completed answer."""
    kind, error = _INCOMPLETE.get(finish, (None, None))
    return Response(index, text, error, kind, finish, usage or NO_USAGE, endpoint, agent_index)
