"""Routes of the gateway, and its error responses."""

import math

from aiohttp import web
from aiohttp.typedefs import Handler

from .gateway_error import GatewayError
from .handlers import ANTHROPIC, OPENAI, SUPPORTED, Handlers

_MAX_BODY_BYTES = 64 * 2**20
"""Bytes of a request body."""
_ROOT = "/{root:(?:v1/+|/)*}"
"""Programs get the address with or without /v1, and may add a /v1 of their own."""
_UNSUPPORTED = ("responses", "completions", "embeddings")


def application(handlers: Handlers) -> web.Application:
    app = web.Application(middlewares=[_error_middleware], client_max_size=_MAX_BODY_BYTES)
    app.add_routes(
        [
            web.get("/", handlers.root),
            web.post(f"{_ROOT}chat/completions", handlers.chat),
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
