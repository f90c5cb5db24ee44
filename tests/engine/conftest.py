"""Every async test in this folder runs in virtual time: its clock starts at 0 and jumps from timer to timer."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from batch_agent.testing import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task outlives a run, and no failure goes unseen, in any of these tests."""
    yield
    await asyncio.sleep(0.001)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left
    gc.collect(1)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
