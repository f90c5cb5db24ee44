"""Selection of the responses that a pattern can use, and error messages for the others."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import BackendError, ErrorKind, SpecError
from .pool_protocol import Pool
from .response import Response

_log = logging.getLogger("batch_agent")
_MAX_NAMED = 3
"""Number of failures that a message lists. Further ones are only counted."""


def has_answer(response: Response) -> bool:
    return response.success and bool(response.text.strip())


def answered(responses: Sequence[Response], pattern: str, role: str = "agent") -> list[Response]:
    """The responses with an answer. Logs the others in one line, because they are missing from the result."""
    usable = [response for response in responses if has_answer(response)]
    if usable and len(usable) < len(responses):
        _log.warning("%s continues without some answers: %s", pattern, _failures(responses, role))
    return usable


def with_left_out(answer: Response, responses: Sequence[Response]) -> Response:
    """The merged answer, with the responses that have no answer in `left_out`."""
    left_out = [replace(each, index=number) for number, each in enumerate(responses) if not has_answer(each)]
    return replace(answer, left_out=tuple(left_out)) if left_out else answer


def joined_texts(responses: Sequence[Response]) -> str:
    """The texts as they appear in a prompt."""
    return "\n---\n".join(response.text for response in responses)


def failed_response(responses: Sequence[Response], pattern: str, role: str = "agent") -> Response:
    """The response of a pattern that has no answer to continue with."""
    return Response(0, error=f"{pattern}: {_failures(responses, role)}", kind=kind_of(responses))


def no_answer_error(responses: Sequence[Response], where: str) -> BackendError:
    """The error of a pattern whose result is not a response."""
    return BackendError(kind_of(responses), f"{where}: {_failures(responses, 'agent')}")


def kind_of(responses: Sequence[Response]) -> ErrorKind:
    """The kind of the first failure. An empty answer counts as invalid output."""
    kinds = (response.kind for response in responses if response.kind is not None)
    return next(kinds, ErrorKind.INVALID_OUTPUT)


def problem(response: Response) -> str:
    """The endpoint and the error of a response."""
    where = f"{response.endpoint}: " if response.endpoint else ""
    return where + ("the answer is empty" if response.error is None else response.error)


def require_agents(pool: Pool, pattern: str) -> None:
    """Raises SpecError."""
    if pool.size == 0:
        raise SpecError(f"{pattern}: the pool has no endpoints. Check the tag or the indices it was selected by.")


def _failures(responses: Sequence[Response], role: str) -> str:
    failed = [(number, response) for number, response in enumerate(responses) if not has_answer(response)]
    named = [f"{role} {number} ({problem(response)})" for number, response in failed[:_MAX_NAMED]]
    more = [f"and {len(failed) - _MAX_NAMED} more"] if len(failed) > _MAX_NAMED else []
    return f"{len(failed)} of {len(responses)} have no answer: {', '.join(named + more)}."
