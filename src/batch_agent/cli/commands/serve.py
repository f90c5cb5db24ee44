"""batch-agent serve."""

import asyncio
import os
import socket
import webbrowser
from functools import partial
from pathlib import Path

from ...core.errors import SpecError, StoreError
from ...core.validation import port as check_port
from ...observe.event_log import FILE
from ...observe.report.live_server import is_loopback, served
from ...observe.report.log_follower import LogFollower
from ...store.reader import CheckpointReader, StoredInput
from ..agent_story import story_lines
from ..checkpoint import open_checkpoint
from ..object_files import Location, folder_here
from ..signals import interruptible, print_lines
from .report import check_is_run


def serve(folder: Location, *, port: int = 8642, host: str = "127.0.0.1", open: bool = False) -> None:
    """Serves the report page until Ctrl-C. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run. By default, results.jsonl.checkpoint for results.jsonl.
    port
        Port to listen on; 0 picks a free one.
    host
        Address to listen on. Everyone who can reach it can read the run.
    open
        Open the page in a browser.
    """
    check_port("--port", port)
    here = folder_here(folder)
    check_is_run(here)
    interruptible(_serve(here, host, port, opens=open))


async def _serve(folder: Path, host: str, port: int, *, opens: bool) -> None:
    follower = LogFollower(folder)
    try:
        async with served(follower, partial(_agent_trace, folder), host, port) as listening:
            _print_address(folder, host, listening, opens=opens)
            await asyncio.Event().wait()
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise SpecError(
            f"The page cannot be served on {host}, port {port}: {reason}. Choose another port with --port; "
            "0 picks a free one."
        ) from error


def _print_address(folder: Path, host: str, port: int, *, opens: bool) -> None:
    address = f"http://{_browser_host(host)}:{port}/"
    if not is_loopback(host):
        print_lines(
            [f"Warning: everyone who can reach {host}, port {port}, can read the prompts, answers and tool results."]
        )
    if not (folder / FILE).exists():
        print_lines(["This run has no event log yet. The page updates when there is one."])
    print(f"Serving {folder} at {address} (Ctrl-C to stop)", flush=True)
    if opens:
        webbrowser.open(address)


def _browser_host(host: str) -> str:
    """The host for a URL that is opened on this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is not bound here
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _agent_trace(folder: Path, stage: str, key: str) -> str:
    """The trace of one agent. Raises StoreError."""
    if Path(stage).name != stage or stage == "..":
        raise StoreError(f"There is no stage {stage!r}.")
    with open_checkpoint(folder / stage, None, None) as (reader, config):
        facts = reader.facts(key)
        stored = StoredInput(0, key, None, facts) if facts else _rejected(reader, key)
        return "\n".join(line.plain for line in story_lines(folder, config, stored))


def _rejected(reader: CheckpointReader, key: str) -> StoredInput:
    """An input whose agent was not started. Raises StoreError if its agent has no facts yet."""
    try:
        return reader.find_input(key)
    except SpecError:
        raise StoreError("The checkpoint has no facts of this agent yet.") from None
