"""Runs and flows whose agents run on a Ray cluster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module

from .. import aio
from ..cluster.coordinator_address import FlowCoordinators, coordinator_of, flow_coordinators
from ..core.spec import BatchSpec
from ..core.task_fields import is_path, table_library
from ..data.file_formats import InputFile
from ..data.input_files import has_more_rows, local_data_files
from ..data.optional_imports import require
from ..engine.result_stream import ResultChannel
from ..lazy_imports import lazy_modules
from ..run import runner
from ..run.setup import RunSetup

with lazy_modules(globals()):
    from . import dataset_run, deployment, ray_coordinator

MAX_ROWS = 1_000_000
"""Maximum number of rows of a file that a coordinator tracks individually. Larger files run by blocks."""


class RayRun:
    """Run whose jobs this process submits and whose results it collects. Agents run in actors, one per node. The rows
    of a Ray Dataset stay in Ray Data, whose actors run them by blocks."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: ResultChannel) -> None:
        """Runs the batch and sends each result to `outbox`.

        Raises SpecError, BackendError, RunStopped and StoreError."""
        setup = self._setup
        await _require_ray(setup)
        if table_library(setup.spec.inputs) == "ray":
            return await dataset_run.DatasetRun(setup).drive(outbox)
        if files := await asyncio.to_thread(_large_files, setup.spec):
            return await self._drive_by_blocks(files, outbox)
        opened = deployment.RayDeployment([setup])
        coordinator = coordinator_of(setup.spec) or ray_coordinator.RayCoordinator(opened.coordinator)
        try:
            with aio.ungrouped():
                async with asyncio.TaskGroup() as group:
                    working = group.create_task(opened.work())
                    await runner.run(setup, outbox, coordinator=coordinator, runs_agents=False)
                    working.cancel()
        finally:
            await opened.leave()

    async def _drive_by_blocks(self, files: list[InputFile], outbox: ResultChannel) -> None:
        """Runs the rows of the files like those of a dataset."""
        setup, spec = self._setup, self._setup.spec
        setup.notify(
            f"{str(spec.inputs)!r} has more than {MAX_ROWS:,} rows: Ray Data runs them by blocks, as BatchAgent.map "
            "does. See docs/distributed-runs.md."
        )
        session = deployment.RaySession("ray", spec.distribution.workers)
        try:
            await asyncio.to_thread(session.enter)
            rows = replace(spec.rows, input_format=None, encoding=None)  # they belong to the file
            await dataset_run.DatasetRun(
                replace(setup, spec=replace(spec, inputs=dataset_run.file_dataset(files), rows=rows))
            ).drive(outbox)
        finally:
            await asyncio.to_thread(session.leave)


def _large_files(spec: BatchSpec) -> list[InputFile]:
    """The files of the inputs, if a map can run their rows and there are more than a million: too many for a
    coordinator that tracks every agent. Blocks. Raises SpecError."""
    is_map = not (spec.rows.selects or spec.evaluation.samples != 1 or spec.evaluation.score or spec.runtime)
    is_here = spec.distribution.cluster == "ray" and spec.distribution.store is None
    if not (is_map and is_here and is_path(spec.inputs)) or _has_checkpoint(spec) or not _has_ray_data():
        return []
    files = local_data_files(spec.inputs, spec.rows.input_format, spec.rows.encoding)
    return files if has_more_rows(files, MAX_ROWS) else []


def _has_checkpoint(spec: BatchSpec) -> bool:
    """Whether the run was begun with a coordinator, with which it then continues."""
    return spec.checkpoint_dir is not None and (spec.checkpoint_dir / "run.sqlite3").exists()


def _has_ray_data() -> bool:
    try:
        import_module("ray.data")
    except ImportError:  # Ray is installed without it
        return False
    return True


@asynccontextmanager
async def open_coordinators(setups: Sequence[RunSetup]) -> AsyncIterator[FlowCoordinators]:
    """The coordinators of a flow with these stages: in its store, or as actors. With `cluster=`, runs the workers for
    the duration of the block. Raises SpecError, StoreError, and the error of the last worker after all have failed."""
    at_store = flow_coordinators([setup.spec for setup in setups])
    if setups[0].spec.distribution.cluster is None:
        assert at_store is not None
        yield at_store
        return
    await _require_ray(setups[0])
    opened = deployment.RayDeployment(setups)
    in_actors = [ray_coordinator.RayCoordinator(partial(opened.coordinator, setup.stage)) for setup in setups]
    try:
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                working = group.create_task(opened.work())
                yield at_store or (ray_coordinator.RayCoordinator(opened.coordinator), in_actors)
                working.cancel()
    finally:
        await opened.leave()


async def _require_ray(setup: RunSetup) -> None:
    option = f"cluster={setup.spec.distribution.cluster!r}"
    await asyncio.to_thread(require, "ray", option, "'batch-agent[ray]'")
