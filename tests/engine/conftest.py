"""Every async test in this folder runs in virtual time: its clock starts at 0 and jumps from timer to timer."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from batch_agent.store import writer
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


@pytest.fixture(autouse=True)
def time_stands_still_while_a_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers would fire meanwhile, those of timeouts too: a thread takes real time, and the clock is virtual."""
    make, submit = writer._WriteJob, writer.WriterThread._submit

    def submit_and_wait(
        self: writer.WriterThread,
        work: writer.Work | None,
        waiters: Sequence[asyncio.Future[Any]],
        synced: Callable[[Any], None] | None = None,
    ) -> None:
        is_done = threading.Event()

        def order(work: Any, done: Any = None, synced: Any = None) -> writer._WriteJob:
            def preload(result: Any, error: Exception | None) -> None:
                if done is not None:
                    done(result, error)
                is_done.set()

            return make(work, preload, synced)

        with monkeypatch.context() as patched:
            patched.setattr(writer, "_WriteJob", order)
            submit(self, work, waiters, synced)
        assert is_done.wait(60)

    monkeypatch.setattr(writer.WriterThread, "_submit", submit_and_wait)
