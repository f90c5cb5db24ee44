"""Every test here leaves things as they were."""

import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.support.process_harness import children, descriptors, marked


@pytest.fixture(autouse=True)
async def nothing_leaks() -> AsyncIterator[None]:
    before = descriptors(), children()
    yield
    assert (descriptors(), children()) == before


@pytest.fixture
async def mark() -> AsyncIterator[str]:
    """Something that only the processes of this test have about them."""
    mark = f"mark-{uuid.uuid4().hex}"
    yield mark
    left = marked(mark)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == set()
