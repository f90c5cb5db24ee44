"""For tests that run programs."""

import signal
from collections.abc import Iterator

import pytest
from tests.support.forked_programs import Call, Programs


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """A command that is called in this process leaves them as they are good for its end."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.fixture
def call(programs: Programs) -> Call:
    """A command that starts at once, in a process of its own."""
    return programs.call
