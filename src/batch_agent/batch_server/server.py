"""Batch server: a store, a worker and HTTP routes over one backend."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from ..batch_api.lines import MAX_BYTES, MAX_LINES
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.spec import BatchSpec
from ..observe.report.live_server import is_loopback
from ..tools import Tool
from .batch_store import BatchStore
from .batch_worker import BatchWorker
from .http_routes import BatchHandlers, BatchRoutesConfig, application
from .line_service import open_line_service

_SHUTDOWN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class BatchServerConfig:
    """Options of a batch server."""

    directory: Path
    """Where files and batches are kept."""
    host: str = "127.0.0.1"
    port: int = 8700
    """0: any free port."""
    api_key: str | None = None
    """Required of clients, if given."""
    max_lines: int = MAX_LINES
    max_file_bytes: int = MAX_BYTES
    grace: float = 10.0
    """Seconds that a stop waits for lines in flight."""

    def __post_init__(self) -> None:
        if self.api_key is None and not is_loopback(self.host):
            raise SpecError(
                f"On {self.host!r}, others could send batches at your expense: set an API key, or listen on 127.0.0.1."
            )


async def serve_batches(
    config: BatchServerConfig,
    spec: BatchSpec,
    tools: Sequence[Tool],
    notify: Callable[[str], None],
    announce: Callable[[int], None],
    stop: asyncio.Event,
) -> None:
    """Serves until `stop` is set, then finishes lines in flight. `announce` is called with the port. `spec`: its
    backend, model, limits, retries and timeouts apply. Raises SpecError, BackendError, StoreError, and OSError if it
    cannot listen."""
    async with AsyncExitStack() as stack:
        store = BatchStore(config.directory)
        await asyncio.to_thread(store.open)
        stack.push_async_callback(store.aclose)
        service = await stack.enter_async_context(open_line_service(spec, tools, notify))
        worker = BatchWorker(store, service, notify, max_lines=config.max_lines)
        routes = BatchRoutesConfig(config.host, config.api_key, config.max_file_bytes)
        app = application(BatchHandlers(store, worker, service, routes))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, config.host, config.port).start()
        announce(runner.addresses[0][1])
        await worker.run(stop, config.grace)
