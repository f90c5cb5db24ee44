"""batch-agent resume."""

import os
from dataclasses import replace
from pathlib import Path

from ...core.errors import SpecError
from ...store.reader import CheckpointReader
from ..checkpoint import checkpoints_in
from ..options.cluster import STORE, ClusterOptions, cluster_options_from_saved
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import reduce_options_from_saved
from ..options.run import from_saved
from ..saved_command import remote_run_id, saved_command
from .run import run

_UNWATCHED = TelemetryOptions()


def resume(
    folder: Path,
    *,
    backend: str | None = None,
    store: str | None = None,
    trust: bool = False,
    dashboard: Dashboard = None,
    watching: TelemetryOptions = _UNWATCHED,
) -> int:
    """Gives the command that made the checkpoint again, and returns its exit status.

    Parameters
    ----------
    folder
        The run's checkpoint: results.jsonl.checkpoint for results.jsonl, if nothing else was said.
    backend
        Where the server is now, if it moved. Needed where its URL held a password: none is kept.
    store
        The same for the Redis server of a run that was started with --store.
    trust
        Give the command again also if somebody else made the checkpoint: it names code to run, files, and a server.
    """
    folder = folder.absolute()
    if remote_run_id(folder) is None:
        for each in checkpoints_in(folder):
            CheckpointReader(each).close()
    command = saved_command(folder)
    if not trust:
        command.check_is_own(folder)
    place, options = command.working_directory, command.given
    if backend is not None:
        options["backend"] = backend
    if "backend" not in options:
        raise SpecError("The backend's URL held a password, which is not kept. Say it again: --backend URL.")
    try:
        os.chdir(place)
    except OSError as error:
        raise SpecError(f"The run was started in {str(place)!r}, which cannot be entered: {error.strerror}.") from error
    asked, others = from_saved(options)
    reducing, others = reduce_options_from_saved(others)
    sharing, others = cluster_options_from_saved(others)
    sharing = _with_store(sharing, store)
    return run(
        asked, reducing=reducing, sharing=sharing, **others, checkpoint=folder, dashboard=dashboard, watching=watching
    )


def _with_store(sharing: ClusterOptions, store: str | None) -> ClusterOptions:
    if sharing.run_id is None:
        if store is not None:
            raise SpecError("The run was started without --store: its progress is in its folder. Leave it out here.")
        return sharing
    known = store or sharing.store or os.environ.get(STORE)
    if known is None:
        raise SpecError("The store's URL held a password, which is not kept. Say it again: --store URL.")
    return replace(sharing, store=known)
