"""batch-agent serve-batches."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...batch_api.lines import MAX_LINES
from ...batch_server.server import BatchServerConfig, serve_batches
from ...core.errors import SpecError
from ...core.safe_text import safe_text
from ...core.spec import BatchSpec
from ...core.validation import at_least
from ...core.validation import port as check_port
from ...tools import Tool
from ..options.line_options import LineOptions
from ..signals import interruptible

_KEY_VARIABLE = "BATCH_AGENT_API_KEY"
_MIB = 2**20


def serve_batch_api(
    *,
    folder: Path = Path("batches"),
    host: str = "127.0.0.1",
    port: int = 8700,
    api_key: Annotated[str | None, Parameter(show_default=False)] = None,
    max_lines: int = MAX_LINES,
    max_file_mb: int = 200,
    grace: float = 10.0,
    options: LineOptions | None = None,
) -> None:
    """Serves until Ctrl-C. Raises SpecError, BackendError and StoreError.

    Parameters
    ----------
    folder
        Directory for files and batches. A server that is started with it again continues them.
    host
        Address to listen on. Any other than this machine's own needs an API key.
    port
        Port to listen on; 0 picks a free one.
    api_key
        Key that clients must send. By default, that of the environment variable BATCH_AGENT_API_KEY, if it is set.
    max_lines
        Most requests in one batch.
    max_file_mb
        Largest file, in MiB.
    grace
        Seconds that a stop waits for requests in flight.
    """
    check_port("--port", port)
    at_least("--max-lines", max_lines, 1)
    at_least("--max-file-mb", max_file_mb, 1)
    key = api_key or os.environ.get(_KEY_VARIABLE) or None
    config = BatchServerConfig(folder, host, port, key, max_lines, max_file_mb * _MIB, grace)
    options = options or LineOptions()
    interruptible(_serve(config, options.to_spec(), options.load_tools()))


async def _serve(config: BatchServerConfig, spec: BatchSpec, tools: list[Tool]) -> None:
    """Serves until a signal, which stops the server in order: requests in flight get their grace period."""
    stop = asyncio.Event()

    def announce(port: int) -> None:
        _notify(
            f"Serving batches in {config.directory} at http://{_shown_host(config.host)}:{port}/v1 (Ctrl-C to stop)"
        )

    serving = asyncio.get_running_loop().create_task(serve_batches(config, spec, tools, _notify, announce, stop))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        _notify("Stopping: no further request is sent. A second signal stops at once.")
        stop.set()
        await serving
        raise
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise SpecError(
            f"Cannot listen on {config.host}, port {config.port}: {reason}. Choose another port with --port."
        ) from error


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _notify(text: str) -> None:
    print(safe_text(text), file=sys.stderr, flush=True)
