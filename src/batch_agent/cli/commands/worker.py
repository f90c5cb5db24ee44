"""batch-agent worker."""

import sys
import time
from typing import Annotated, Any

from cyclopts import Parameter

from ...cluster.connect import coordinator_of
from ...core.errors import PlanMismatch, SpecError
from ...core.protocols import EventSink
from ...core.spec import BatchSpec
from ...observe.live.progress import progress_for
from ...observe.sinks import combine_sinks
from ...observe.text.summary import summary_lines
from ...run import runner
from ...run.setup import RunSetup
from ..options.cluster import STORE
from ..options.observability import Dashboard, TelemetryOptions
from ..remote_run import RemoteRun, wait_for_command
from ..signals import StoppedBySignal, print_lines, run_until_signal
from ..trust_policy import TrustPolicy
from ..worker_manifest import WorkerManifest

_UNWATCHED = TelemetryOptions()


def worker(
    *,
    store: Annotated[str, Parameter(env_var=STORE)],
    run: str,
    backend: str | None = None,
    max_inflight: int | None = None,
    lease: float | None = None,
    patience: float = 60.0,
    trust: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    dashboard: Dashboard = None,
    watching: TelemetryOptions = _UNWATCHED,
) -> int:
    """Works until the run has nothing left to do, and returns the exit status. Raises SpecError, BackendError and
    StoreError.

    Parameters
    ----------
    store
        The Redis server where the run is, as in redis://host:6379/0.
    run
        The name of the run: batch-agent run says it when it starts.
    backend
        Where the model's server is, seen from here; if not given, as for the run. Needed where an API key of this
        machine is used for it: keys go to no server that only the run names. Needed where its URL held a password.
    max_inflight
        Requests in flight at once; if not given, as for the run.
    lease
        Seconds after which this worker is taken to be gone if it is not heard of; if not given, as for the run.
    patience
        Seconds to wait for a run that is not there yet, or that has nothing to do.
    trust
        What agents may use of this machine: tools (my_tools:look, http_get), whole modules, folders, programs.
    """
    shared = RemoteRun(store, run)
    if not patience >= 0:
        raise SpecError(f"--patience must be a number of seconds of at least 0; got {patience!r}.")
    options = {"backend": backend, "max_inflight": max_inflight, "lease": lease}
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    BatchSpec.of(task="none", inputs=[], **said)  # or it is refused only when there is work
    part = WorkerJob(shared, store, said, trust or [])
    progress = progress_for(sys.stderr, dashboard)
    events = combine_sinks([progress, *watching.sinks()])
    ended = run_until_signal(part.do(patience, events))
    tally = progress.board.alone
    if tally.done:
        print_lines(summary_lines(progress.board, time.monotonic() - part.began))
    did = f"This worker did {tally.done:,} agents of run {run}."
    if isinstance(ended, StoppedBySignal):
        given_back = [] if tally.run is None else [f"{did} What it had begun is given back: others go on with it."]
        print_lines([ended.why, *given_back])
        return ended.status
    print_lines([f"{did} Nothing is left to do."])
    return 0


class WorkerJob:
    """One worker's part in a run."""

    def __init__(self, run: RemoteRun, store: str, said: dict[str, object], trust: list[str]) -> None:
        """`said`: options that count more than what the run says."""
        self._run = run
        self._store = store
        self._said = said
        self._trust = trust
        self.began = time.monotonic()
        """When there was something to do."""

    async def do(self, patience: float, events: EventSink | None) -> None:
        """Raises SpecError, BackendError, StoreError and RunStopped."""
        command = await wait_for_command(self._run, self._store, patience, lambda text: print_lines([text]))
        if command is None:
            return
        self.began = time.monotonic()
        spec = self.spec(WorkerManifest.read(command))
        coordinator = coordinator_of(spec)
        assert coordinator is not None
        try:
            await runner.work(RunSetup.validate(spec, events), coordinator)
        except PlanMismatch as error:
            raise SpecError(
                f"This worker would ask something else than run {self._run.name!r} does: {error.changes}. "
                "Install the same code and the same version of batch-agent here, and name a server that has the same "
                "model."
            ) from error

    def spec(self, command: WorkerManifest) -> BatchSpec:
        """What is asked here. Raises SpecError."""
        if "backend" not in self._said:
            command.check_backend()
        try:
            asked = command.asked_here(TrustPolicy(self._trust))
        except SpecError as error:
            raise SpecError(f"{error} (The run was started in {command.folder!r}.)") from error
        return BatchSpec.of(**{**asked, **self._said}, store=self._store, run_id=self._run.name)
