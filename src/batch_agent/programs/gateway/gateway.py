"""HTTP server of the gateway: its routes and its error responses."""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import CompletionService
from .gateway_error import GatewayError
from .handlers import ANTHROPIC, OPENAI, SUPPORTED, Handlers
from .responses import StreamPace
from .sessions import ClientSessions

_MAX_BODY_BYTES = 64 * 2**20
"""Maximum size of a request body."""
_ROOT = "/{root:(?:v1/+|/)*}"
"""Programs get the address with or without /v1, and may append another /v1."""
_UNSUPPORTED = ("completions", "embeddings")


def application(handlers: Handlers) -> web.Application:
    app = web.Application(middlewares=[_error_middleware], client_max_size=_MAX_BODY_BYTES)
    app.add_routes(
        [
            web.get("/", handlers.root),
            web.post(f"{_ROOT}chat/completions", handlers.chat),
            web.post(f"{_ROOT}responses", handlers.responses),
            web.post(f"{_ROOT}messages", handlers.messages),
            web.post(f"{_ROOT}messages/count_tokens", handlers.count),
            web.get(f"{_ROOT}models", handlers.models),
            web.get(_ROOT + "models/{id:.+}", handlers.model),
            *[web.post(_ROOT + name, handlers.unsupported) for name in _UNSUPPORTED],
        ]
    )
    return app


@web.middleware
async def _error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Encodes every error in the API of the request."""
    try:
        return await handler(request)
    except GatewayError as error:
        return _error_response(request, error)
    except web.HTTPRequestEntityTooLarge:
        return _error_response(
            request, GatewayError(f"The request body is larger than {_MAX_BODY_BYTES:,} bytes.", status=413)
        )
    except web.RequestPayloadError as error:
        return _error_response(request, GatewayError(f"The request body cannot be read: {error}"))
    except web.HTTPException as error:
        what = f"{request.method} {request.path} does not exist. {SUPPORTED}"
        return _error_response(request, GatewayError(what, status=error.status))


def _error_response(request: web.Request, error: GatewayError) -> web.Response:
    is_anthropic = "/messages" in request.path or "anthropic-version" in request.headers
    body = (ANTHROPIC if is_anthropic else OPENAI).error(error)
    headers = {"x-should-retry": "false"}  # read by OpenAI's and Anthropic's clients; the engine has retried already
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class Gateway:
    """Address of the gateway, and the programs that are allowed to use it."""

    url: str
    """Without a path."""
    sessions: ClientSessions

    def admit(self, agent: str, hides: Mapping[str, str]) -> str:
        """Admits the program of `agent`, and returns its API key, which is valid until `dismiss`. Repeated calls return
        the same key. `hides`: maps strings that are specific to this agent, such as its directory, to their
        replacements for the model."""
        return self.sessions.admit(agent, hides)

    def dismiss(self, agent: str) -> None:
        """Revokes the agent's key, cancels its requests and forgets the replies it received."""
        self.sessions.dismiss(agent)


@asynccontextmanager
async def open_gateway(service: CompletionService, pace: StreamPace | None = None) -> AsyncIterator[Gateway]:
    """Listens on the loopback interface while the block runs; requests in progress at its end are cancelled."""
    sessions = ClientSessions()
    app = application(Handlers(service, sessions, pace or StreamPace()))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", sessions)
    finally:
        sessions.dismiss_all()
        await runner.cleanup()
