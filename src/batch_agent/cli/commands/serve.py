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
from ...observe.report.host_check import is_loopback
from ...observe.report.log_follower import LogFollower
from ...observe.report.server import served
from ...observe.text.agent_trace import agent_trace_lines
from ..checkpoint import open_checkpoint
from ..signals import interruptible, print_lines
from .report import check_is_run


def serve(folder: Path, *, port: int = 8642, host: str = "127.0.0.1", open: bool = False) -> None:
    """Serves until it is told to stop. Raises StoreError and SpecError.

    Parameters
    ----------
    folder
        The run's checkpoint: results.jsonl.checkpoint for results.jsonl, if nothing else was said.
    port
        The port to listen on; 0 chooses a free one.
    host
        The address to listen on. Anybody who can reach it can read the run.
    open
        Also open the page in a browser.
    """
    check_port("--port", port)
    check_is_run(folder)
    interruptible(_serve(folder, host, port, opens=open))


async def _serve(folder: Path, host: str, port: int, *, opens: bool) -> None:
    following = LogFollower(folder)
    try:
        async with served(following, partial(_told, folder), host, port) as listening:
            _say_where(folder, host, listening, opens=opens)
            await asyncio.Event().wait()
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise SpecError(
            f"The page cannot be served on {host}, port {port}: {why}. Choose another port with --port; "
            "0 takes a free one."
        ) from error


def _say_where(folder: Path, host: str, port: int, *, opens: bool) -> None:
    address = f"http://{_reached(host)}:{port}/"
    if not is_loopback(host):
        print_lines(
            [f"Anybody who can reach {host}, port {port}, can read the run: prompts, answers and tool results."]
        )
    if not (folder / FILE).exists():
        print_lines(["There is no log of this run yet; the page will show it as soon as there is."])
    print(f"{folder} is shown at {address} until Ctrl-C.", flush=True)
    if opens:
        webbrowser.open(address)


def _reached(host: str) -> str:
    """From this machine, as it stands in an address."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is not bound here
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _told(folder: Path, stage: str, key: str) -> str:
    """The story of one agent."""
    if Path(stage).name != stage or stage == "..":
        raise StoreError(f"There is no stage {stage!r}.")
    with open_checkpoint(folder / stage, None, None) as (reader, rules):
        facts = reader.facts(key)
        if not facts:
            raise StoreError("The checkpoint holds nothing of this agent yet.")
        return "\n".join(line.plain for line in agent_trace_lines(rules, key, facts))
