"""batch-agent resume."""

import os
from dataclasses import replace
from pathlib import Path

from ...core.errors import SpecError
from ...store.reader import CheckpointReader
from ..checkpoint import checkpoints_in
from ..object_files import RunLocation, is_server_url, open_to_read
from ..options.cluster import STORE, ClusterOptions, cluster_options_from_saved
from ..options.command_options import from_saved
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import reduce_options_from_saved
from ..saved_command import remote_run_id, saved_command
from .run import run

_NO_TELEMETRY = TelemetryOptions()


def resume(
    folder: RunLocation,
    *,
    backend: str | None = None,
    store: str | None = None,
    trust: bool = False,
    dashboard: Dashboard = None,
    telemetry: TelemetryOptions = _NO_TELEMETRY,
) -> int:
    """Runs the command that made the checkpoint again, and returns its exit status.

    Parameters
    ----------
    folder
        Checkpoint directory of the run. By default, results.jsonl.checkpoint for results.jsonl.
    backend
        The server's new URL, if it moved. Required if the original URL contained a password, which is not stored.
    store
        The same for the Redis server of a run started with --store.
    trust
        Resume a checkpoint of another user. Its command names code to run, files, and a server.
    """
    if is_server_url(folder):
        raise SpecError(
            "A run is resumed by its command, which is in the directory of the process that submitted it, not on the "
            "server: batch-agent resume FOLDER --store URL. To run agents that it has submitted: batch-agent worker "
            "--store URL --run NAME. To see what it did: batch-agent inspect URL --run NAME."
        )
    location = folder.absolute() if isinstance(folder, Path) else folder
    with open_to_read(location) as read:
        if remote_run_id(read) is None:
            for each in checkpoints_in(read):
                CheckpointReader(each).close()
        command = saved_command(read)
        if not trust:
            command.check_is_own(read)
    directory, options = command.working_directory, command.given
    if backend is not None:
        options["backend"] = backend
    if "backend" not in options:
        raise SpecError("The backend URL contained a password, which is not stored. Add --backend URL.")
    try:
        os.chdir(directory)
    except OSError as error:
        raise SpecError(
            f"The run was started in {str(directory)!r}, which cannot be entered: {error.strerror}."
        ) from error
    task, others = from_saved(options)
    reducer, others = reduce_options_from_saved(others)
    cluster, others = cluster_options_from_saved(others)
    cluster = _with_store(cluster, store)
    return run(
        task, reducer=reducer, cluster=cluster, **others, checkpoint=location, dashboard=dashboard, telemetry=telemetry
    )


def _with_store(cluster: ClusterOptions, store: str | None) -> ClusterOptions:
    if cluster.run_id is None:
        if store is not None:
            raise SpecError("The run was started without --store: its checkpoint is in its directory. Remove --store.")
        return cluster
    known = store or cluster.store or os.environ.get(STORE)
    if known is None:
        raise SpecError("The store URL contained a password, which is not stored. Add --store URL.")
    return replace(cluster, store=known)
