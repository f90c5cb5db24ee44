"""Concurrent runs of several models over the same inputs, for `models=`."""

import asyncio
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import aio
from ..aio import is_being_cancelled
from ..cluster.coordinator_address import FlowCoordinators, run_id_of, stage_spec
from ..core.errors import BatchAgentError, ErrorKind, SpecError
from ..core.events import FlowStarted, Notice
from ..core.options.backend_settings import BackendSettings, NamedBackend
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..data import read_inputs_async, result_file_writer
from ..data.inputs import print_notice
from ..engine.result_stream import ResultChannel
from ..lazy_imports import lazy_modules
from ..observe.score_file import MODEL_PREFIX
from ..observe.sinks import StageEvents
from ..run.resource_opener import open_resources
from ..run.runner import execute, work_for_flow
from ..run.setup import RunSetup

with lazy_modules(globals()):
    from .. import ray

_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")
_MAX_LEGIBLE = 40
Put = Callable[[AgentResult], Awaitable[None]]


class ModelRuns:
    """One run per model. The runs share the budget and, on one server, its slots; each has its own checkpoint."""

    def __init__(self, spec: BatchSpec, events: EventSink | None) -> None:
        """Raises SpecError."""
        self._spec = spec
        self._events = events
        self._setups = [
            RunSetup.validate(each, None if events is None else StageEvents(model, events), model)
            for model, each in specs_by_model(spec).items()
        ]

    async def drive(self, channel: ResultChannel) -> None:
        """Runs all models, with their results sent to the channel. Raises like a run."""
        spec = self._spec
        inputs, rows = await self._inputs(), spec.rows.of_read_inputs()
        setups = [
            replace(
                setup,
                spec=replace(setup.spec, inputs=inputs, rows=rows, out=None),
                compared_model=setup.stage,
            )
            for setup in self._setups
        ]
        if self._events is not None:
            self._events.emit(FlowStarted(tuple(setup.stage for setup in setups)))
        async with AsyncExitStack() as stack:
            coordinator, stages = (None, ()) if not self._is_shared else await stack.enter_async_context(_meet(setups))
            runs = await stack.enter_async_context(open_resources(setups, self._events, coordinator, stages=stages))
            runs_agents = spec.distribution.cluster is None
            put: Put = channel.put
            if spec.out is not None:
                put = _written(await stack.enter_async_context(result_file_writer(spec.out)), put)
            channel.total = sum(run.agents or 0 for run in runs)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(execute(run, put, runs_agents=runs_agents)) for run in runs]
                    await asyncio.wait(tasks)  # on 3.11, a group that fails on exit leaves its own cancel() pending
            except BaseExceptionGroup as failures:
                if is_being_cancelled():
                    raise asyncio.CancelledError from None
                error = aio.unwrap_group(failures, BatchAgentError)
                raise error from error.__cause__
            finally:
                channel.scheduling, channel.report = runs[0].scheduling, runs[0].measured_report

    async def work(self) -> None:
        """Works for runs of the same models that another process submitted, like `runner.work`."""
        if self._events is not None:
            self._events.emit(FlowStarted(tuple(setup.stage for setup in self._setups)))
        async with _meet(self._setups) as (coordinator, stages):
            await work_for_flow(self._setups, self._events, coordinator, stages)

    @property
    def _is_shared(self) -> bool:
        return self._spec.distribution.store is not None or self._spec.distribution.cluster is not None

    async def _inputs(self) -> Sequence[Any]:
        """All inputs, which each model reads from the start."""
        events = self._events
        notify = print_notice if events is None else (lambda text: events.emit(Notice(text)))
        found = await read_inputs_async(self._spec.inputs, self._spec.rows, notify)
        if isinstance(found, Sequence):
            return found
        return [each async for each in found] if isinstance(found, AsyncIterable) else list(found)


def specs_by_model(spec: BatchSpec) -> dict[str, BatchSpec]:
    """The spec of each model's run, with its backend and its directory in the checkpoint."""
    models = spec.evaluation.models or ()
    backends = models if isinstance(models, Mapping) else {}
    return {
        model: replace(
            stage_spec(spec, run_id_of(spec), model_stage(model)),
            model=_model_of(backends.get(model), model),
            backend=backends.get(model, spec.backend),
            checkpoint_dir=None if spec.checkpoint_dir is None else model_folder(spec.checkpoint_dir, model),
            evaluation=replace(spec.evaluation, models=None),
        )
        for model in models
    }


def _meet(setups: Sequence[RunSetup]) -> AbstractAsyncContextManager[FlowCoordinators]:
    return ray.open_coordinators(setups)


def model_stage(model: str) -> str:
    """Name of a model's run within the run of all models: legible, and different for each model."""
    digest = blake2b(model.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{_NOT_IN_ID.sub('-', model)[:_MAX_LEGIBLE]}-{digest}"


def _model_of(backend: NamedBackend | None, name: str) -> str:
    """The model that a name of `models=` stands for: that of its backend, if it names one."""
    return (backend.model or name) if isinstance(backend, BackendSettings) else name


def model_folder(folder: Path, model: str) -> Path:
    return folder / f"{MODEL_PREFIX}{quote(model, safe='')}"


def _written(write: Callable[[AgentResult], None], put: Put) -> Put:
    async def deliver(result: AgentResult) -> None:
        try:
            write(result)
        except SpecError as error:
            await put(result)
            raise RunStopped(ErrorKind.OUT, str(error)) from error.__cause__
        await put(result)

    return deliver
