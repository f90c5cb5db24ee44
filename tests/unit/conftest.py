"""For tests that run programs."""

from collections.abc import Iterator

import pytest
from tests.support.forked_programs import Call, Programs


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.fixture
def call(programs: Programs) -> Call:
    """A command that starts at once, in a process of its own."""
    return programs.call
