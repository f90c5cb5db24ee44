"""batch-agent worker."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...cluster.coordinator_address import coordinator_of
from ...cluster.redis.redis_coordinator import existing_runs, runs_known
from ...core.coordinator import Coordinator, Documents
from ...core.errors import PlanMismatch, SpecError, StoreError
from ...core.protocols.event_sink import EventSink
from ...core.spec import BatchSpec
from ...flows import Flow
from ...observe.live.progress import progress_for
from ...observe.sinks import combine_sinks
from ...observe.text.flow_summary import partial_flow_summary_lines
from ...observe.text.summary import summary_lines
from ...run import runner
from ...run.fallback import FallbackRuns
from ...run.setup import RunSetup
from ..config_file import backend_of
from ..options.cluster import STORE
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import reduced_flow
from ..shared_run import COMMAND, SharedRun
from ..signals import StoppedBySignal, print_lines, run_until_signal
from ..trust_policy import TrustPolicy
from ..worker_manifest import WorkerManifest

_NO_TELEMETRY = TelemetryOptions()
_POLL_SECONDS = 1.0
"""Interval at which the server is queried in case no notification arrives."""


def worker(
    *,
    store: Annotated[str, Parameter(env_var=STORE)],
    run: str,
    backend: str | None = None,
    fallback: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    max_inflight: int | None = None,
    lease: float | None = None,
    patience: float = 60.0,
    trust: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    checkpoint: Path | None = None,
    log_requests: Path | None = None,
    dashboard: Dashboard = None,
    telemetry: TelemetryOptions = _NO_TELEMETRY,
) -> int:
    """Runs agents of the run until no work is left, and returns the exit status. Raises SpecError, BackendError and
    StoreError.

    Parameters
    ----------
    store
        Redis server of the run, such as redis://host:6379/0.
    run
        Name of the run, which batch-agent run prints when it starts.
    backend
        The model server's URL from this machine, or the name of a backend in the batch.toml of the current directory.
        By default, as for the run. Required if the backend uses an API key of this machine or a file, or if its URL
        contained a password.
    fallback
        The fallbacks of the run from this machine, one for each, in the same order. By default, as for the run.
        Required if one of them uses an API key of this machine, or if its URL contained a password.
    max_inflight
        Concurrent requests. By default, as for the run.
    lease
        Seconds without a heartbeat after which this worker is considered dead. By default, as for the run.
    patience
        Seconds to wait for a run that does not exist yet or has no work.
    trust
        What agents may use on this machine: tools (my_tools:search, http_get), modules, directories, programs.
    checkpoint
        Checkpoint directory of the run, if this machine shares it: files that tools make go to its artifacts directory.
        By default, a temporary directory of this machine.
    log_requests
        Append each request of this worker to the model and its raw response to this .jsonl file. API keys are masked.
    """
    remote = SharedRun(store, run)
    if not patience >= 0:
        raise SpecError(f"--patience must be a number of seconds >= 0, got {patience!r}.")
    files = {"checkpoint_dir": checkpoint, "log_requests": log_requests}
    named = None if backend is None else backend_of(backend)
    options = {"backend": named, "fallback": fallback, "max_inflight": max_inflight, "lease": lease, **files}
    overrides: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    BatchSpec.of(task="none", inputs=[], **overrides)  # validated before the worker waits for work
    job = WorkerJob(remote, overrides, trust or [])
    progress = progress_for(sys.stderr, dashboard)
    events = combine_sinks([progress, *telemetry.sinks()])
    ended = run_until_signal(job.run(patience, events))
    state, seconds = progress.state, time.monotonic() - job.started
    done = sum(stage.stats.done for stage in state.stages.values())
    if done:
        print_lines((partial_flow_summary_lines if state.is_flow else summary_lines)(state, seconds))
    ran = f"This worker ran {done:,} agents of run {run}."
    if isinstance(ended, StoppedBySignal):
        released = [] if not state.has_started else [f"{ran} Other workers take over its unfinished agents."]
        print_lines([ended.message, *released])
        return ended.status
    print_lines([f"{ran} No work is left."])
    return 0


class WorkerJob:
    """The work of one worker in a run."""

    def __init__(self, run: SharedRun, overrides: dict[str, object], trust: list[str]) -> None:
        """`overrides`: options of this worker that replace those of the run."""
        self._run = run
        self._overrides = overrides
        self._trust = trust
        self.started = time.monotonic()
        """Time at which the worker found work."""

    async def run(self, patience: float, events: EventSink | None) -> None:
        """Waits for work and runs it. Raises SpecError, BackendError, StoreError and RunStopped."""
        command = await wait_for_command(self._run, patience, lambda text: print_lines([text]))
        if command is None:
            return
        self.started = time.monotonic()
        manifest = WorkerManifest.from_json(command)
        try:
            if (flow := self.flow(manifest)) is not None:
                await flow.work(events=events)
                return
            spec = self.spec(manifest)
            if spec.fallback:
                await FallbackRuns(spec, events).work()
                return
            coordinator = coordinator_of(spec)
            assert coordinator is not None
            await runner.work(RunSetup.validate(spec, events), coordinator)
        except PlanMismatch as error:
            raise SpecError(
                f"The prompts of this worker would differ from those of run {self._run.name!r}: {error.changes}. "
                "Install the same code and the same version of batch-agent here, and use a server with the same model."
            ) from error

    def spec(self, manifest: WorkerManifest) -> BatchSpec:
        """The spec of this worker. Raises SpecError."""
        return BatchSpec.of(**self._options(manifest))

    def flow(self, manifest: WorkerManifest) -> Flow | None:
        """The flow of this worker; None for a run without a reduce. Raises SpecError."""
        reduce = manifest.reduce_options(TrustPolicy(self._trust))
        return None if reduce is None else reduced_flow(self._options(manifest), reduce)

    def _options(self, manifest: WorkerManifest) -> dict[str, Any]:
        if "backend" not in self._overrides:
            manifest.check_backend()
        given = self._overrides.get("fallback")
        manifest.check_fallback(given if isinstance(given, list) else None)
        try:
            kwargs = manifest.to_kwargs(TrustPolicy(self._trust))
        except SpecError as error:
            raise SpecError(f"{error} (The run was started in {manifest.folder!r}.)") from error
        return {**kwargs, **self._overrides, "store": self._run.store, "run_id": self._run.name}


async def wait_for_command(run: SharedRun, patience: float, notify: Callable[[str], None]) -> bytes | None:
    """Waits for work and returns the command of the run; None if a finished run gets no new work within `patience`
    seconds.

    Raises SpecError if the run does not exist by then or was not started by `batch-agent run`."""
    now = asyncio.get_running_loop().time
    until = now() + patience
    async with run.connect() as coordinator:
        after, is_notified = await coordinator.updates.position(), False
        while not await _has_work(run, coordinator):
            if (left := until - now()) <= 0:
                await _check_known(run, coordinator.documents)
                return None
            if not is_notified:
                notify(await _waiting(run, coordinator.documents, patience))
                is_notified = True
            after = (await coordinator.updates.poll(after, wait=min(left, _POLL_SECONDS))).after
        command = (await coordinator.documents.read(COMMAND)).data
    if command is None:
        raise SpecError(
            f"Run {run.name!r} at {run.url} was not started by `batch-agent run`. To join it, start the same "
            "Python program here, with the same store= and run_id=."
        )
    return command


async def _has_work(run: SharedRun, coordinator: Coordinator) -> bool:
    return await run.has_submitter(coordinator.documents) or await coordinator.work.pending_count() > 0


async def _waiting(run: SharedRun, documents: Documents, patience: float) -> str:
    if (await documents.read(COMMAND)).data is not None:
        return f"Run {run.name} at {run.url} has no work. Waiting up to {patience:g} s ..."
    return f"Waiting up to {patience:g} s for run {run.name} at {run.url} ... {await _known_runs(run.store)}"


async def _check_known(run: SharedRun, documents: Documents) -> None:
    """Raises SpecError."""
    if (await documents.read(COMMAND)).data is None:
        raise SpecError(
            f"There is no run {run.name!r} at {run.url}. {await _known_runs(run.store)} To start it: "
            f"batch-agent run --store {run.url} --run {run.name}"
        )


async def _known_runs(store: str) -> str:
    known: list[str] = []
    with suppress(StoreError):  # the list is only a hint
        known = await runs_known(store)
    return existing_runs(known)
