"""Runs a simulated server in this process until it is stopped."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable

import orjson

from .http import ClientConnection
from .routes import SimRoutes
from .sim_config import Script, SimConfig


def print_port(port: int) -> None:
    print(orjson.dumps({"port": port}).decode(), flush=True)


def serve(
    config: SimConfig,
    script: Script,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    until_stdin_ends: bool = False,
    announce: Callable[[int], None] = print_port,
) -> None:
    """Calls `announce` with the port, then serves until SIGTERM, SIGINT or, optionally, the end of standard input."""
    server = _serve(config, script, host, port, until_stdin_ends, announce)
    try:
        import uvloop
    except ImportError:
        asyncio.run(server)
    else:
        uvloop.run(server)


async def _serve(
    config: SimConfig, script: Script, host: str, port: int, until_stdin_ends: bool, announce: Callable[[int], None]
) -> None:
    # Requests leave no reference cycles: a collection after every 700 objects would be a tenth of the work.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    app = SimRoutes(config, script, loop)
    listener = await loop.create_server(lambda: ClientConnection(app.handle, app.connections), host, port, backlog=4096)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if until_stdin_ends:
        await loop.connect_read_pipe(lambda: _UntilEnd(stopped), sys.stdin)
    announce(listener.sockets[0].getsockname()[1])
    await stopped.wait()
    listener.close()
    for connection in list(app.connections):
        connection.close()


class _UntilEnd(asyncio.Protocol):
    """Stops the server when the process at the other end of the pipe has died."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped.set()
