"""batch-agent resume."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from ...atomic_file import atomic_write
from ...cluster.redis.redis_coordinator import RedisCoordinator
from ...core.errors import SpecError
from ...core.task_fields import STDIN
from ...store.reader import CheckpointReader
from ..checkpoint import MAP, checkpoint_of, checkpoints_in
from ..options.cluster import STORE, ClusterOptions, cluster_options_from_saved
from ..options.command_options import from_saved
from ..options.observability import Dashboard, TelemetryOptions
from ..options.reduce import reduce_options_from_saved
from ..run_address import RunLocation, check_unnamed, download_folder, is_server_url, server_run
from ..saved_command import SavedCommand, parse_command, remote_run_id, saved_command
from ..shared_run import SharedRun
from ..signals import print_lines
from .run import run as run_command

_NO_TELEMETRY = TelemetryOptions()
_SELECTION = ("query", "limit", "sample", "where", "input_format")
"""Options that select inputs. The inputs on the server have been selected already."""


def resume(
    folder: RunLocation,
    *,
    run: str | None = None,
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
        Checkpoint directory of the run, or the URL of a Redis server. By default, results.jsonl.checkpoint for
        results.jsonl.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    backend
        The server's new URL, if it moved. Required if the original URL contained a password, which is not stored.
    store
        The same for the Redis server of a run started with --store.
    trust
        Resume a run of another user or machine. Its command names code to run, files, and a server.
    """
    if is_server_url(folder):
        if store is not None:
            raise SpecError("The URL of the store is already given. Remove --store.")
        shared = server_run(folder, run)
        command, location = _command_of(shared, trust=trust)
        store = shared.store
    else:
        check_unnamed(run)
        location = folder.absolute() if isinstance(folder, Path) else folder
        with download_folder(location) as read:
            if remote_run_id(read) is None:
                for each in checkpoints_in(read):
                    CheckpointReader(each).close()
            command = saved_command(read)
            if not trust:
                command.check_is_own(f"the checkpoint {str(location)!r}")
        _enter(command.working_directory)
    options = command.given
    if backend is not None:
        options["backend"] = backend
    if "backend" not in options:
        raise SpecError("The backend URL contained a password, which is not stored. Add --backend URL.")
    task, others = from_saved(options)
    reducer, others = reduce_options_from_saved(others)
    cluster, others = cluster_options_from_saved(others)
    cluster = _with_store(cluster, store)
    return run_command(
        task, reducer=reducer, cluster=cluster, **others, checkpoint=location, dashboard=dashboard, telemetry=telemetry
    )


def _enter(directory: Path) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise SpecError(
            f"The run was started in {str(directory)!r}, which cannot be entered: {error.strerror}."
        ) from error


def _command_of(shared: SharedRun, *, trust: bool) -> tuple[SavedCommand, Path | str]:
    """The command of a run on a server, and its checkpoint directory. If the caller ran on another machine, the results
    are written here, and the inputs are read from the server. Raises SpecError and StoreError."""
    data = asyncio.run(shared.saved_command())
    command = parse_command(data, f"The command of {shared.title}")
    if not trust:
        command.check_is_own(shared.title)
    given = command.given
    checkpoint = given.pop("checkpoint")
    if command.working_directory.is_dir():
        os.chdir(command.working_directory)
    else:
        given["out"] = out = given["out"] if isinstance(given["out"], str) else Path(given["out"].name)
        checkpoint = checkpoint if isinstance(checkpoint, str) else checkpoint_of(out)
    if not _has_inputs(given.get("inputs")):
        given |= dict.fromkeys(_SELECTION)
        given["inputs"] = _save_inputs(shared, is_reduced=given.get("reduce") is not None)
    return command.model_copy(update={"options": given, "paths": {}}), checkpoint


def _has_inputs(inputs: Path | str | None) -> bool:
    """Whether this machine can read the inputs: a local file or a URL."""
    if isinstance(inputs, str):
        return inputs != STDIN
    return inputs is not None and (inputs.exists() or any(Path(inputs.anchor).glob(str(inputs)[len(inputs.anchor) :])))


def _save_inputs(shared: SharedRun, *, is_reduced: bool) -> Path:
    """Writes the inputs of the run from the server to a local file. Raises SpecError if they are incomplete, and
    StoreError."""
    rows = asyncio.run(_recorded_inputs(shared.stage(MAP) if is_reduced else shared))
    values = [rows.get(index) for index in range(len(rows))]
    if not values or None in values:
        raise SpecError(
            f"The inputs of {shared.title} are not on this machine, and the server does not have all of them: it "
            "keeps lists of up to 64 MiB. Run the whole original command where its inputs are: it continues the run."
        )
    path = Path(f"{shared.name}.inputs.jsonl").absolute()
    with atomic_write(path, is_private=True) as file:
        file.write(b"".join(value + b"\n" for value in values if value is not None))
    print_lines([f"Inputs: {path.name}, as the server has them."])
    return path


async def _recorded_inputs(shared: SharedRun) -> dict[int, bytes | None]:
    """Inputs on the server by index, as JSON; None for an input that JSON cannot represent."""
    rows: dict[int, bytes | None] = {}
    async with shared.connect() as coordinator:
        assert isinstance(coordinator, RedisCoordinator)
        async for page in coordinator.inputs.pages():
            rows |= {each.index: each.data for each in page if each.error is None}
    return rows


def _with_store(cluster: ClusterOptions, store: str | None) -> ClusterOptions:
    if cluster.run_id is None:
        if store is not None:
            raise SpecError("The run was started without --store: its checkpoint is in its directory. Remove --store.")
        return cluster
    known = store or cluster.store or os.environ.get(STORE)
    if known is None:
        raise SpecError("The store URL contained a password, which is not stored. Add --store URL.")
    return replace(cluster, store=known)
