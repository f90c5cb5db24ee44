"""What pure tools gave is there for later runs; what a task tends to call is made ahead."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.event_list import EventList

from batch_agent import BatchAgent, SpecError, StoreError, Tool
from batch_agent.core.events import ToolsUsed
from batch_agent.core.requests import Request
from batch_agent.core.results import ToolUse
from batch_agent.testing import Answer, ScriptedBackend, call, say
from batch_agent.tools.disk_cache import ToolDiskCache


class Log(EventList):
    @property
    def used(self) -> ToolUse:
        [found] = [event for event in self.events if isinstance(event, ToolsUsed)]
        return found.tools[0]


def counting(log: list[int], effect: Any = "pure") -> Tool:
    @Tool.define(effect=effect)
    async def square(number: int) -> int:
        log.append(number)
        return number * number

    return square


def answer(request: Request) -> Answer:
    first = request.messages[0]
    return call("square", number=int(first.text)) if len(request.messages) == 1 else say("done")  # type: ignore[union-attr]


async def run(tool: Tool, folder: Path, log: Log | None = None, inputs: Any = ("2", "3", "3"), **options: Any) -> None:
    results = await BatchAgent.run(
        task="{it}",
        inputs=list(inputs),
        tools=[tool],
        backend=ScriptedBackend(answer),
        tool_cache_dir=folder,
        events=log,
        **options,
    )
    assert all(result.ok for result in results), results


async def test_results_of_a_pure_tool_are_reused_by_a_later_run(tmp_path: Path) -> None:
    computed: list[int] = []
    await run(counting(computed), tmp_path)
    await run(counting(computed), tmp_path)
    assert sorted(computed) == [2, 3]


async def test_a_tool_whose_code_has_changed_is_asked_anew(tmp_path: Path) -> None:
    computed: list[int] = []
    await run(counting(computed), tmp_path, inputs=["2"])

    @Tool.define(effect="pure")
    async def square(number: int) -> int:
        computed.append(number)
        return number**2

    await run(square, tmp_path, inputs=["2"])
    assert computed == [2, 2]


@pytest.mark.parametrize("effect", ["read", "stateful", "write"])
async def test_only_results_of_pure_tools_are_cached_on_disk(tmp_path: Path, effect: str) -> None:
    computed: list[int] = []
    for _ in range(2):
        await run(counting(computed, effect), tmp_path, inputs=["2"])
    assert computed == [2, 2]


async def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    tries: list[int] = []

    @Tool.define(effect="pure")
    async def square(number: int) -> int:
        tries.append(number)
        raise ArithmeticError("no")

    for _ in range(2):
        await run(square, tmp_path, inputs=["2"])
    assert tries == [2, 2]


async def test_the_calls_of_an_earlier_run_are_made_ahead(tmp_path: Path) -> None:
    computed: list[int] = []
    await run(counting(computed), tmp_path)
    (tmp_path / "tools.sqlite3").unlink()
    await run(counting(computed), tmp_path)  # notes the calls anew

    ready = asyncio.Event()
    made: list[int] = []

    @Tool.define(effect="pure")
    async def square(number: int) -> int:
        made.append(number)
        if len(made) == 2:
            ready.set()
        return number

    async def patient(request: Request) -> Answer:
        await ready.wait()
        return answer(request)

    log = Log()
    results = await BatchAgent.run(
        task="{it}",
        inputs=["3"],
        tools=[square],
        backend=ScriptedBackend(patient),
        tool_cache_dir=tmp_path,
        predictive_prewarm=True,
        events=log,
    )
    assert results[0].tool_calls[0].source == "cached"
    assert sorted(made) == [2, 3]
    assert (log.used.prewarmed, log.used.executed, log.used.cached) == (2, 2, 1)


async def test_making_calls_ahead_is_called_off_with_the_run(tmp_path: Path) -> None:
    await run(counting([]), tmp_path)
    began, cancelled = asyncio.Event(), asyncio.Event()

    @Tool.define(effect="pure")
    async def square(number: int) -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return number

    async def when_it_began(request: Request) -> Answer:
        async with asyncio.timeout(30):
            await began.wait()
        return say("done")

    await BatchAgent.run(
        task="{it}",
        inputs=["7"],
        tools=[square],
        backend=ScriptedBackend(when_it_began),
        tool_cache_dir=tmp_path,
        predictive_prewarm=True,
    )
    assert cancelled.is_set()


def test_making_calls_ahead_needs_a_place_that_knows_them() -> None:
    with pytest.raises(SpecError, match="predictive_prewarm needs tool_cache_dir"):
        BatchAgent.stream(task="{it}", inputs=["a"], predictive_prewarm=True)


async def test_a_folder_that_cannot_be_used_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="tool cache"):
        await run(counting([]), tmp_path / "file")


async def test_a_cache_that_breaks_in_mid_run_costs_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from batch_agent.tools.disk_cache import ToolDiskCache

    async def broken(self: ToolDiskCache, key: bytes) -> None:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(ToolDiskCache, "get", broken)
    computed: list[int] = []
    await run(counting(computed), tmp_path)
    assert sorted(computed) == [2, 3]
    assert "It is not used any more" in caplog.text


@pytest.mark.slow
def test_the_fingerprint_of_a_function_is_the_same_in_every_process() -> None:
    program = """
from batch_agent import Tool
from batch_agent.tools.disk_cache import code_digest

@Tool.define(effect="pure")
def known(word: str) -> bool:
    return word in {"one", "two", "three", "four", "five", "six", "seven"}

print(code_digest(known).hex())
"""
    told = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True).stdout)
    assert len(told) == 1
    assert told != {b""}


async def test_the_cache_is_not_closed_while_a_cancelled_call_still_uses_it(tmp_path: Path) -> None:
    """SQLite crashes the process if another thread closes a connection that is in use."""
    cache, started, may_go_on = ToolDiskCache(tmp_path), threading.Event(), threading.Event()
    await cache.open()
    used: list[object] = []

    def slow(db: sqlite3.Connection) -> None:
        started.set()
        assert may_go_on.wait(10)
        used.append(db.execute("SELECT 1").fetchone())

    call = asyncio.ensure_future(cache._do(slow))
    await asyncio.to_thread(started.wait, 10)
    call.cancel()
    closing = asyncio.ensure_future(cache.aclose())
    await asyncio.sleep(0.02)
    assert not closing.done()
    may_go_on.set()
    await closing
    assert used == [(1,)]
    with pytest.raises(StoreError, match="it is closed"):
        await cache.get(b"key")
