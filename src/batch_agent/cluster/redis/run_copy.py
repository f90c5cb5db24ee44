"""Copy of a run from a Redis server to a checkpoint directory, where every reader of checkpoints can open it."""

import asyncio
from pathlib import Path

from ...atomic_file import atomic_write
from ...core.coordinator import IDENTITY, PLAN
from ...core.facts import Started
from ...store.checkpoint_copy import CheckpointCopy, EncodedFact, InputRow, open_copy
from ...store.codec import decode_job, encode, encode_input
from ..run_files import RUN_FILES
from ..shared_control import is_active
from .redis_coordinator import RedisCoordinator, no_such_run, runs_known
from .stored_run import StoredRun

_RETRY_SECONDS = 10.0
_JUDGE = ".judge."
"""Part of the names of judges' runs."""


async def copy_run(url: str, run: str, folder: Path, *, agent: str | None = None) -> bool:
    """Copies the run to a new checkpoint in the directory: all of it, or one agent only. A flow gets a directory for
    each stage. Returns whether any process is working on the run. Concurrent changes may or may not be in the copy, but
    each agent is consistent.

    Raises SpecError for an invalid URL, and StoreError if the server does not have the run."""
    coordinator = RedisCoordinator(url, run, retry_seconds=_RETRY_SECONDS)
    await coordinator.open()
    try:
        plan = (await coordinator.documents.read(PLAN)).data
        if plan is None:
            stages = [] if agent is not None else await stages_of(url, run)
            if not stages:
                raise no_such_run(run, coordinator.url, await runs_known(url))
            copied = [await copy_run(url, f"{run}.{stage}", folder / stage) for stage in stages]
            await _copy_files(coordinator, folder)
            return any(copied) or await is_active(coordinator.documents)
        identity = (await coordinator.documents.read(IDENTITY)).data or b""
        with open_copy(folder) as copy:
            copy.save_plan(plan, identity.decode())
            if agent is not None:
                copy.add_facts(await coordinator.stored.facts([agent]))
            else:
                await _copy_all(coordinator, copy)
        if agent is None:
            await _copy_files(coordinator, folder)
        return await is_active(coordinator.documents)
    finally:
        await coordinator.aclose()


async def stages_of(url: str, run: str) -> list[str]:
    """Names of the stages of a flow on the server, without the runs of judges; empty for a run without stages. Raises
    StoreError."""
    known = [name.removeprefix(f"{run}.") for name in await runs_known(url) if name.startswith(f"{run}.")]
    return [name for name in known if _JUDGE not in f".{name}"]


async def _copy_all(coordinator: RedisCoordinator, copy: CheckpointCopy) -> None:
    spent, seen = await coordinator.facts.spent(), set[str]()
    copy.save_prices(await coordinator.inputs.prices())
    jobs, started = await _unfinished(coordinator.stored)
    await asyncio.to_thread(copy.add_inputs, jobs)
    async for page in coordinator.inputs.pages():
        await asyncio.to_thread(copy.add_inputs, [(each.index, each.data, each.error) for each in page])
    async for keys in coordinator.stored.agents():
        new = [key for key in dict.fromkeys(keys) if key not in seen]  # a scan may list a key twice
        seen.update(new)
        await asyncio.to_thread(copy.add_facts, await coordinator.stored.facts(new))
    await asyncio.to_thread(copy.add_facts, [fact for fact in started if fact[0] not in seen])
    await asyncio.to_thread(copy.save_discarded, spent)


async def _copy_files(coordinator: RedisCoordinator, folder: Path) -> None:
    for name in RUN_FILES:
        if (data := (await coordinator.documents.read(name)).data) is not None:
            with atomic_write(folder / name, is_private=True) as file:
                file.write(data)


async def _unfinished(stored: StoredRun) -> tuple[list[InputRow], list[EncodedFact]]:
    """Inputs of agents that have not ended, and starts of those that a worker holds: workers send an agent's start only
    with its first reply."""
    inputs: dict[str, InputRow] = {}  # a scan may list a job twice
    started: dict[str, EncodedFact] = {}
    async for data, is_leased in stored.jobs():
        job = decode_job(data)
        inputs[job.key] = (job.index, encode_input(job.input), None)
        if is_leased:
            started[job.key] = (job.key, *encode(Started.of(job)))
    return list(inputs.values()), list(started.values())
