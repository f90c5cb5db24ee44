"""batch-agent worker."""

import sys
import time
from typing import Annotated, Any

from cyclopts import Parameter

from ...cluster.connect import hub_of
from ...core.errors import PlanMismatch, SpecError
from ...core.protocols import EventSink
from ...core.spec import BatchSpec
from ...observe.live.progress import progress_for
from ...observe.sinks import watched_by
from ...observe.text.summary import summary_lines
from ...run import runner
from ...run.setup import RunSetup
from ..options.cluster import STORE
from ..options.observability import Dashboard, Watching
from ..remote_run import SharedRun, awaited
from ..signals import Stopped, run_to_the_end, say
from ..trust_policy import Trusted
from ..worker_manifest import SharedCommand

_UNWATCHED = Watching()


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
    watching: Watching = _UNWATCHED,
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
    shared = SharedRun(store, run)
    if not patience >= 0:
        raise SpecError(f"--patience must be a number of seconds of at least 0; got {patience!r}.")
    options = {"backend": backend, "max_inflight": max_inflight, "lease": lease}
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    BatchSpec.of(task="none", inputs=[], **said)  # or it is refused only when there is work
    part = Part(shared, store, said, trust or [])
    progress = progress_for(sys.stderr, dashboard)
    events = watched_by([progress, *watching.sinks()])
    ended = run_to_the_end(part.do(patience, events))
    tally = progress.board.alone
    if tally.done:
        say(summary_lines(progress.board, time.monotonic() - part.began))
    did = f"This worker did {tally.done:,} agents of run {run}."
    if isinstance(ended, Stopped):
        given_back = [] if tally.run is None else [f"{did} What it had begun is given back: others go on with it."]
        say([ended.why, *given_back])
        return ended.status
    say([f"{did} Nothing is left to do."])
    return 0


class Part:
    """One worker's part in a run."""

    def __init__(self, run: SharedRun, store: str, said: dict[str, object], trust: list[str]) -> None:
        """`said`: options that count more than what the run says."""
        self._run = run
        self._store = store
        self._said = said
        self._trust = trust
        self.began = time.monotonic()
        """When there was something to do."""

    async def do(self, patience: float, events: EventSink | None) -> None:
        """Raises SpecError, BackendError, StoreError and RunStopped."""
        command = await awaited(self._run, self._store, patience, lambda text: say([text]))
        if command is None:
            return
        self.began = time.monotonic()
        spec = self.spec(SharedCommand.read(command))
        hub = hub_of(spec)
        assert hub is not None
        try:
            await runner.work(RunSetup.validate(spec, events), hub)
        except PlanMismatch as error:
            raise SpecError(
                f"This worker would ask something else than run {self._run.name!r} does: {error.changes}. "
                "Install the same code and the same version of batch-agent here, and name a server that has the same "
                "model."
            ) from error

    def spec(self, command: SharedCommand) -> BatchSpec:
        """What is asked here. Raises SpecError."""
        if "backend" not in self._said:
            command.check_backend()
        try:
            asked = command.asked_here(Trusted(self._trust))
        except SpecError as error:
            raise SpecError(f"{error} (The run was started in {command.folder!r}.)") from error
        return BatchSpec.of(**{**asked, **self._said}, store=self._store, run_id=self._run.name)
