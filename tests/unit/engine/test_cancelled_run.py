"""A run that is called off while its checkpoint is written still says what is done."""

import asyncio
import json
from pathlib import Path

import pytest

from batch_agent import AgentResult, BatchAgent
from batch_agent.core.events import Event, TurnEnded
from batch_agent.testing import ScriptedBackend, say


class CallsOff:
    """Cancels a task once so many turns have ended: at that moment their agents wait for the checkpoint."""

    def __init__(self, turns: int) -> None:
        self._left = turns
        self.task: asyncio.Task[object] | None = None

    def emit(self, event: Event) -> None:
        self._left -= isinstance(event, TurnEnded)
        if self._left == 0 and self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)
            self.task = None


async def test_results_being_stored_at_a_cancellation_are_delivered_and_written(tmp_path: Path) -> None:
    heard: list[AgentResult] = []
    calls_off = CallsOff(3)
    run = BatchAgent.run(
        task="{it}",
        inputs=["a", "b", "c"],
        backend=ScriptedBackend(lambda _: say("done")),
        checkpoint_dir=tmp_path / "kept",
        out=tmp_path / "out.jsonl",
        events=[calls_off],
        on_result=heard.append,
    )
    calls_off.task = asyncio.create_task(run)
    with pytest.raises(asyncio.CancelledError):
        await calls_off.task
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["index"] for row in rows) == sorted(result.index for result in heard) == [0, 1, 2]


async def test_a_stream_left_early_has_its_unread_results(tmp_path: Path) -> None:
    calls_off = CallsOff(3)
    backend = ScriptedBackend(lambda _: say("done"))
    stream = BatchAgent.stream(
        task="{it}", inputs=["a", "b", "c"], backend=backend, checkpoint_dir=tmp_path / "kept", events=[calls_off]
    )

    async def read() -> None:
        async with stream:
            async for _ in stream:
                pass

    calls_off.task = asyncio.create_task(read())
    with pytest.raises(asyncio.CancelledError):
        await calls_off.task
    assert sorted(result.index for result in stream.unread()) == [0, 1, 2]
    assert stream.unread() == []
