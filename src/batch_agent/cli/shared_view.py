"""View of a run on a Redis server: a checkpoint directory with an event log, for the report and the live page."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..cluster.redis.run_copy import copy_run
from ..cluster.run_observer import observe_run
from ..core.agent_config import AgentConfig
from ..core.events import RunStarted
from ..core.facts import Fact
from ..core.protocols import Prices
from ..core.results import AgentResult
from ..core.safe_text import public_url
from ..observe.background_sink import BackgroundSink
from ..observe.checkpoint_results import recorded_result
from ..observe.event_recorder import EventRecorder
from ..run.checkpoint_table import CheckpointTable
from ..store.lock import DirectoryLock
from .checkpoint import open_checkpoint
from .remote_run import RemoteRun
from .run_source import SharedRun


async def record_run(shared: SharedRun, folder: Path, *, follows: bool) -> None:
    """Copies the run to the directory, and writes an event log there: first of what has ended. `follows`: then of what
    the workers do, for as long as a process works on the run. Raises SpecError and StoreError."""
    async with RemoteRun(shared.store, shared.name).connect() as coordinator:
        after = await coordinator.position()
        is_active = await copy_run(shared.store, shared.name, folder)
        shared.check_is_one(folder, "show")
        with ExitStack() as stack:
            if is_active:
                lock = DirectoryLock(folder)
                lock.take()  # as the run would hold it
                stack.callback(lock.release)
            config, prices, results = await asyncio.to_thread(_read, folder)
            started = RunStarted(public_url(shared.store), config.model, 0, len(results), prices=prices)
            ended = [result for result in results if result.status in ("answered", "failed")]

            def rebuild(key: str, facts: Sequence[Fact]) -> AgentResult | None:
                return recorded_result(config, key, facts)

            events = stack.enter_context(BackgroundSink([EventRecorder(folder)]))
            await observe_run(coordinator, after, started, ended, events, rebuild, follows=follows)


def _read(folder: Path) -> tuple[AgentConfig, Prices | None, list[AgentResult]]:
    with open_checkpoint(folder, None, None) as (reader, config):
        return config, reader.prices(), [result for _, result in CheckpointTable(folder, reader, config)]
