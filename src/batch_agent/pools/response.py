"""What a pool gives for each prompt."""

from collections.abc import Mapping

from ..core.errors import ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, FinishReason, Usage

_NOT_WHOLE: Mapping[FinishReason, tuple[ErrorKind, str]] = {
    "length": (ErrorKind.TRUNCATED, "The answer was cut off at max_tokens."),
    "refusal": (ErrorKind.REFUSED, "The model, or a filter behind it, declined to answer."),
}


@dataclass(frozen=True, slots=True)
class Response:
    """One per prompt. Either `text` is the whole answer, or `error` says what is wrong; an answer that was cut off at
    max_tokens is no success, and has the text that there is."""

    index: int
    """The number of its prompt."""
    text: str = ""
    error: str | None = None
    kind: ErrorKind | None = None
    """What kind of error it is."""
    finish: FinishReason | None = None
    usage: Usage = NO_USAGE
    """Zero where the server does not tell it for each prompt."""
    endpoint: str = ""
    agent_index: int = -1
    """The number of the endpoint in the pool that was asked; -1: none was."""
    left_out: tuple["Response", ...] = ()
    """Of an answer that was made of several: those without an answer, which are not in it. `index` is the number of
    the agent or leaf among them."""

    @property
    def success(self) -> bool:
        """Whether there is an answer, and all of it."""
        return self.error is None


def response_of(
    index: int, text: str, finish: FinishReason, usage: Usage | None, endpoint: str, agent_index: int
) -> Response:
    """Of an answer that has come to its end."""
    kind, error = _NOT_WHOLE.get(finish, (None, None))
    return Response(index, text, error, kind, finish, usage or NO_USAGE, endpoint, agent_index)
