"""Batch server: a store, a worker and HTTP routes over one backend. The routes are those of the OpenAI API."""

import asyncio
import hmac
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, web
from aiohttp.typedefs import Handler

from ..batch_api.api_error import ApiError
from ..batch_api.lines import MAX_BYTES, MAX_LINES
from ..batch_api.resources import page_of, read_batch_request
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps, loads
from ..core.spec import BatchSpec
from ..observe.report.live_server import is_known, is_loopback
from ..tools import Tool
from .batch_store import BatchStore, new_id
from .batch_worker import BatchWorker
from .line_service import LineService, open_line_service

_SHUTDOWN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class BatchServerConfig:
    """Options of a batch server."""

    directory: Path
    """Directory for files and batches."""
    host: str = "127.0.0.1"
    port: int = 8700
    """0 picks a free port."""
    api_key: str | None = None
    """If given, clients must send it."""
    max_lines: int = MAX_LINES
    max_file_bytes: int = MAX_BYTES
    grace: float = 10.0
    """Seconds for which a stop waits for lines in flight."""

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
    """Serves until `stop` is set, then finishes lines in flight. `announce`: called with the port. `spec`: only its
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


_MAX_JSON_BYTES = 2**20
_CHUNK_BYTES = 2**18
_MAX_FIELD_BYTES = 1000
_FILES_PAGE = 10_000
_ROUTES = "/v1/files, /v1/batches, /v1/models and /health"


@dataclass(frozen=True, slots=True)
class BatchRoutesConfig:
    """Access control and limits of the server."""

    host: str
    api_key: str | None = None
    max_file_bytes: int = 200 * 2**20


class BatchHandlers:
    """HTTP handlers, one method per route. All of them raise ApiError."""

    def __init__(self, store: BatchStore, worker: BatchWorker, service: LineService, config: BatchRoutesConfig) -> None:
        self._store = store
        self._worker = worker
        self._service = service
        self._config = config

    async def upload(self, request: web.Request) -> web.StreamResponse:
        if not request.content_type.startswith("multipart/"):
            raise ApiError("A file is uploaded as multipart/form-data, with the fields 'file' and 'purpose'.")
        file_id = new_id("file-")
        filename, purpose = None, None
        try:
            try:
                async for part in await request.multipart():
                    if not isinstance(part, BodyPartReader):
                        raise ApiError("The upload has a part that is not a field.")
                    if part.name == "file":
                        filename = part.filename or "file"
                        await self._receive(part, file_id)
                    elif part.name == "purpose":
                        purpose = (await part.read_chunk(_MAX_FIELD_BYTES)).decode(errors="replace")
            except (ValueError, web.RequestPayloadError) as error:
                raise ApiError(f"The upload cannot be read: {error}.") from error
            if filename is None or purpose is None:
                missing = "file" if filename is None else "purpose"
                raise ApiError(f"'{missing}' is a required property", param=missing)
            if purpose != "batch":
                raise ApiError(f"'{purpose}' is not one of ['batch']", param="purpose", code="invalid_value")
            return _json((await self._store.add_file(file_id, filename, purpose)).as_json())
        except BaseException:
            self._store.path(file_id).unlink(missing_ok=True)
            raise

    async def files(self, request: web.Request) -> web.StreamResponse:
        purpose = request.query.get("purpose")
        found = [file for file in self._store.files.values() if purpose in (None, file.purpose)]
        return _json(page_of(found if request.query.get("order") == "asc" else found[::-1], request.query, _FILES_PAGE))

    async def file(self, request: web.Request) -> web.StreamResponse:
        return _json(self._store.file(request.match_info["id"]).as_json())

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = self._store.file(request.match_info["id"])
        return web.FileResponse(self._store.path(file.id), headers={"Content-Type": "application/octet-stream"})

    async def delete_file(self, request: web.Request) -> web.StreamResponse:
        file_id = request.match_info["id"]
        await self._store.delete_file(file_id)
        return _json({"id": file_id, "object": "file", "deleted": True})

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":  # a page of another site can post any other type
            raise ApiError("A batch is created with a body of type application/json.")
        wanted = read_batch_request(_object(await request.read()), self._service.endpoints)
        return _json((await self._worker.create(wanted)).as_json())

    async def batches(self, request: web.Request) -> web.StreamResponse:
        return _json(page_of(list(reversed(self._store.batches.values())), request.query))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        return _json(self._store.batch(request.match_info["id"]).as_json())

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        return _json((await self._worker.cancel(request.match_info["id"])).as_json())

    async def models(self, request: web.Request) -> web.StreamResponse:
        model = {"id": self._service.model, "object": "model", "created": 0, "owned_by": "batch-agent"}
        return _json({"object": "list", "data": [model]})

    async def health(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks the client, and answers errors in OpenAI's format."""
        try:
            self._authenticate(request)
            return await handler(request)
        except ApiError as error:
            return _json(error.body(), error.status)
        except web.HTTPRequestEntityTooLarge:
            return _json(ApiError(f"The body is larger than {_MAX_JSON_BYTES:,} bytes.").body(), 413)
        except web.HTTPException as error:
            where = f"{request.method} {request.path}"
            return _json(ApiError(f"Invalid URL ({where}). This server has {_ROUTES}.").body(), error.status)

    def _authenticate(self, request: web.Request) -> None:
        if not is_known(request.headers.get("Host", ""), self._config.host):
            raise ApiError("The Host header does not name this server.", 403, code="unknown_host")
        if "Origin" in request.headers:  # a browser may send a form with a file without asking the server first
            raise ApiError("A page in a browser cannot use this server.", 403, code="unknown_origin")
        key, given = self._config.api_key, request.headers.get("Authorization", "")
        if key is None or request.path == "/health":
            return
        if not hmac.compare_digest(given.removeprefix("Bearer ").encode(), key.encode()):
            raise ApiError("Incorrect API key provided.", 401, code="invalid_api_key")

    async def _receive(self, part: BodyPartReader, file_id: str) -> None:
        limit, size = self._config.max_file_bytes, 0
        with self._store.path(file_id).open("wb") as file:
            while chunk := await part.read_chunk(_CHUNK_BYTES):
                size += len(chunk)
                if size > limit:
                    raise ApiError(
                        f"The file is larger than {limit:,} bytes.", 413, param="file", code="file_too_large"
                    )
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())


def application(handlers: BatchHandlers) -> web.Application:
    app = web.Application(middlewares=[handlers.middleware], client_max_size=_MAX_JSON_BYTES)
    app.add_routes(
        [
            web.get("/health", handlers.health),
            web.get("/v1/models", handlers.models),
            web.post("/v1/files", handlers.upload),
            web.get("/v1/files", handlers.files),
            web.get("/v1/files/{id}", handlers.file),
            web.delete("/v1/files/{id}", handlers.delete_file),
            web.get("/v1/files/{id}/content", handlers.content),
            web.post("/v1/batches", handlers.create_batch),
            web.get("/v1/batches", handlers.batches),
            web.get("/v1/batches/{id}", handlers.batch),
            web.post("/v1/batches/{id}/cancel", handlers.cancel),
        ]
    )
    return app


def _object(data: bytes) -> dict[str, Any]:
    try:
        body = loads(data)
    except ValueError as error:
        raise ApiError(f"We could not parse the JSON body of your request: {error}.") from error
    if not isinstance(body, dict):
        raise ApiError("The JSON body of your request must be an object.")
    return body


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=dumps(body), content_type="application/json")
