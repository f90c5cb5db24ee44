"""batch-agent serve."""

import asyncio
import os
import socket
import webbrowser
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ... import aio
from ...core.errors import SpecError, StoreError
from ...core.options.fallback_entry import fallback_folder
from ...core.validation import port as check_port
from ...evaluation.model_runs import model_folder
from ...observe.event_log import FILE
from ...observe.report.live_server import is_loopback, served
from ...observe.report.log_follower import LogFollower
from ...store.reader import CheckpointReader, StoredInput
from ..agent_story import story_lines
from ..checkpoint import FACTS, open_checkpoint
from ..run_address import RunLocation, find_live_run
from ..shared_run import SharedRun
from ..signals import interruptible, print_lines
from .report import check_is_run


def serve(
    folder: RunLocation, *, run: str | None = None, port: int = 8642, host: str = "127.0.0.1", open: bool = False
) -> None:
    """Serves the report page until Ctrl-C. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run, also that of a run on this machine with a checkpoint in an object store, or
        the URL of a Redis server. By default, results.jsonl.checkpoint for results.jsonl.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    port
        Port to listen on; 0 picks a free one.
    host
        Address to listen on. Everyone who can reach it can read the run.
    open
        Open the page in a browser.
    """
    check_port("--port", port)
    found = find_live_run(folder, run)
    here, shared = (found, None) if isinstance(found, Path) else (found.folder, found)
    if here is not None:
        check_is_run(here)
        title = str(folder) if shared is None else shared.title
        interruptible(_serve(here, shared, title, host, port, opens=open))
    elif shared is not None:
        with TemporaryDirectory(prefix="batch-agent-") as temporary:
            interruptible(_serve_shared(Path(temporary, shared.name), shared, host, port, opens=open))


async def _serve_shared(folder: Path, shared: SharedRun, host: str, port: int, *, opens: bool) -> None:
    """Serves a run on a server. Its event log is made in a new directory, because the directory of the submitting
    process has its own."""
    with aio.ungrouped():
        async with asyncio.TaskGroup() as group:
            group.create_task(shared.record(folder, follows=True))
            await _serve(folder, shared, shared.title, host, port, opens=opens)


async def _serve(folder: Path, shared: SharedRun | None, title: str, host: str, port: int, *, opens: bool) -> None:
    try:
        async with served(LogFollower(folder), partial(agent_trace, folder, shared=shared), host, port) as listening:
            _print_address(folder, title, host, listening, opens=opens)
            await asyncio.Event().wait()
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise SpecError(
            f"The page cannot be served on {host}, port {port}: {reason}. Choose another port with --port; "
            "0 picks a free one."
        ) from error


def _print_address(folder: Path, title: str, host: str, port: int, *, opens: bool) -> None:
    address = f"http://{_browser_host(host)}:{port}/"
    if not is_loopback(host):
        print_lines(
            [f"Warning: everyone who can reach {host}, port {port}, can read the prompts, answers and tool results."]
        )
    if not (folder / FILE).exists():
        print_lines(["This run has no event log yet. The page updates when there is one."])
    print(f"Serving {title} at {address} (Ctrl-C to stop)", flush=True)
    if opens:
        webbrowser.open(address)


def _browser_host(host: str) -> str:
    """The host for a URL that is opened on this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is not bound here
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


def agent_trace(folder: Path, stage: str, key: str, *, shared: SharedRun | None = None) -> str:
    """The trace of one agent. Raises StoreError."""
    if shared is None:
        return _trace(_checkpoint_of(folder, stage), folder, key)
    with TemporaryDirectory(prefix="batch-agent-") as temporary:
        copy = Path(temporary, shared.name)
        shared.copy(copy, agent=key)
        return _trace(copy, folder, key)


def _trace(checkpoint: Path, run: Path, key: str) -> str:
    """`run`: directory whose lock the run holds."""
    with open_checkpoint(checkpoint, None, None) as (reader, config):
        facts = reader.facts(key)
        stored = StoredInput(0, key, None, facts) if facts else _rejected(reader, key)
        return "\n".join(line.plain for line in story_lines(run, config, stored))


def _checkpoint_of(folder: Path, stage: str) -> Path:
    """The checkpoint of a stage of a flow, of one of several models, or of a fallback; the run's own if it has no
    stages, and for the first backend of a run with a fallback. Raises StoreError."""
    if (own := model_folder(folder, stage)).is_dir():
        return own
    if fallback := fallback_folder(stage):
        return folder / fallback
    if Path(stage).name == stage and stage != ".." and (folder / stage).is_dir():
        return folder / stage
    if not (folder / FACTS).exists():
        raise StoreError(f"There is no stage {stage!r}.")
    return folder


def _rejected(reader: CheckpointReader, key: str) -> StoredInput:
    """An input whose agent was not started. Raises StoreError if its agent has no facts yet."""
    try:
        return reader.find_input(key)
    except SpecError:
        raise StoreError("The checkpoint has no facts of this agent yet.") from None
