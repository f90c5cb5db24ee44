"""Which responses can be used, and what is said of the others."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import BackendError, ErrorKind, SpecError
from .protocol import Pool
from .response import Response

_log = logging.getLogger("batch_agent")
_MOST_TOLD = 3
"""Failures that a message names; of the others it says how many they are."""


def has_answer(response: Response) -> bool:
    return response.success and bool(response.text.strip())


def answered(responses: Sequence[Response], pattern: str, who: str = "agent") -> list[Response]:
    """Those that have an answer. The others are told of in the log, because a result without them is another one: all
    at once, so that it is one line however many they are."""
    usable = [response for response in responses if has_answer(response)]
    if usable and len(usable) < len(responses):
        _log.warning("%s goes on without them: %s", pattern, _told(responses, who))
    return usable


def naming_left_out(answer: Response, responses: Sequence[Response]) -> Response:
    """What was made of them, with those that have no answer."""
    lost = [replace(each, index=number) for number, each in enumerate(responses) if not has_answer(each)]
    return replace(answer, left_out=tuple(lost)) if lost else answer


def joined(responses: Sequence[Response]) -> str:
    """Their texts, as a prompt shows them."""
    return "\n---\n".join(response.text for response in responses)


def nothing(responses: Sequence[Response], pattern: str, who: str = "agent") -> Response:
    """What a pattern gives that has no answer to go on with."""
    return Response(0, error=f"{pattern}: {_told(responses, who)}", kind=kind_of(responses))


def no_answer(responses: Sequence[Response], where: str) -> BackendError:
    """For patterns whose result is no response."""
    return BackendError(kind_of(responses), f"{where}: {_told(responses, 'agent')}")


def kind_of(responses: Sequence[Response]) -> ErrorKind:
    """Of the first that failed; an empty answer is no valid one."""
    kinds = (response.kind for response in responses if response.kind is not None)
    return next(kinds, ErrorKind.INVALID_OUTPUT)


def problem(response: Response) -> str:
    """Where it went wrong, and how."""
    where = f"{response.endpoint}: " if response.endpoint else ""
    return where + ("the answer is empty" if response.error is None else response.error)


def need_agents(pool: Pool, pattern: str) -> None:
    """Raises SpecError."""
    if pool.size == 0:
        raise SpecError(f"{pattern} has nobody to ask: the pool is empty. Was it chosen by a tag that no endpoint has?")


def _told(responses: Sequence[Response], who: str) -> str:
    failed = [(number, response) for number, response in enumerate(responses) if not has_answer(response)]
    named = [f"{who} {number} ({problem(response)})" for number, response in failed[:_MOST_TOLD]]
    more = [f"and {len(failed) - _MOST_TOLD} more"] if len(failed) > _MOST_TOLD else []
    return f"no answer came from {len(failed)} of {len(responses)}: {', '.join(named + more)}."
