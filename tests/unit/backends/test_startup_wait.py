"""What a run waits for before it begins, and what it says meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from batch_agent.backends.startup_wait import with_retries
from batch_agent.core.errors import BackendError, ErrorKind, WebPage
from batch_agent.testing import run_virtual

DROPPED = BackendError(ErrorKind.CONNECTION, "The connection failed: Server disconnected.")
PAGE = BackendError(ErrorKind.UNAVAILABLE, "a web page (502 Bad Gateway)", status=502)


def waited(
    attempt: Callable[[], Awaitable[str]], *, has_answered: bool = False
) -> tuple[str, list[tuple[float, str]], float]:
    """The outcome, the notices with their times, and how long it took."""
    notices: list[tuple[float, str]] = []

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await with_retries(
                attempt,
                "http://host/v1/models",
                60.0,
                lambda text: notices.append((loop.time() - began, text)),
                has_answered=has_answered,
            )
        except BackendError as error:
            found = str(error)
        seconds = loop.time() - began
        await asyncio.sleep(60)  # a notice after the end would be seen
        return found, seconds

    found, seconds = run_virtual(main())
    return found, notices, seconds


def answering(*failures: BackendError, seconds: float = 0.0) -> Callable[[], Awaitable[str]]:
    left = list(failures)

    async def attempt() -> str:
        await asyncio.sleep(seconds)
        if left:
            raise left.pop(0)
        return "the models"

    return attempt


def test_a_proxy_whose_server_is_gone_is_asked_for_a_few_seconds_and_the_user_is_told_after_one() -> None:
    said = "a web page (502 Bad Gateway). It is asked again for 2 s."
    found, notices, seconds = waited(answering(*[PAGE] * 4))
    assert found == str(PAGE)
    assert notices == [(1.0, said)]
    assert seconds == 3.5


def test_a_server_that_says_when_to_come_back_is_waited_for_as_long() -> None:
    busy = BackendError(ErrorKind.UNAVAILABLE, "loading", status=503, retry_after=5.0)
    found, notices, seconds = waited(answering(busy, busy, busy))
    assert (found, seconds) == ("the models", 15.0)
    assert notices == [(1.0, "loading. It is asked again for 14 s.")]


def test_a_server_that_does_not_respond_is_named_after_a_second() -> None:
    assert waited(answering(seconds=20)) == (
        "the models",
        [(1.0, "Waiting for http://host/v1/models, for at most 60 s.")],
        20.0,
    )


@pytest.mark.parametrize("failures", [(), (PAGE,)])
def test_a_server_that_responds_within_a_second_is_not_mentioned(failures: tuple[BackendError, ...]) -> None:
    assert waited(answering(*failures))[:2] == ("the models", [])


@pytest.mark.parametrize(
    "error",
    [
        BackendError(ErrorKind.UNAVAILABLE, "connection refused"),
        WebPage(ErrorKind.SERVER, "a web page", status=200),
        BackendError(ErrorKind.AUTH, "no such key", status=401),
    ],
)
def test_what_another_try_does_not_change_is_an_error_at_once(error: BackendError) -> None:
    assert waited(answering(error)) == (str(error), [], 0.0)


def test_a_dropped_connection_is_made_again() -> None:
    """Balancers drop connections now and then. A port that does nothing else is an error soon."""
    assert waited(answering(DROPPED)) == ("the models", [], 0.5)
    assert waited(answering(DROPPED, DROPPED)) == (str(DROPPED), [], 0.5)


def test_a_server_that_has_answered_may_drop_several_connections() -> None:
    found, _, seconds = waited(answering(DROPPED, DROPPED, DROPPED), has_answered=True)
    assert (found, seconds) == ("the models", 3.5)
    assert waited(answering(*[DROPPED] * 4), has_answered=True)[0] == str(DROPPED)


def test_a_server_that_is_silent_is_not_asked_again() -> None:
    found, _, seconds = waited(answering(DROPPED, seconds=60.0), has_answered=True)
    assert (found, seconds) == (str(DROPPED), 60.0)
