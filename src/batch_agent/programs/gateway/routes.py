"""Where what is found."""

import math

from aiohttp import web
from aiohttp.typedefs import Handler

from .errors import GatewayError
from .handlers import ANTHROPIC, OPENAI, SUPPORTED, Handlers

_LARGEST = 64 * 2**20
"""Bytes of a request."""
_ROOT = "/{root:(?:v1/+|/)*}"
"""Programs are told the address with or without /v1, and put their own before what they ask for, or do not."""
_UNSUPPORTED = ("responses", "completions", "embeddings")


def application(pages: Handlers) -> web.Application:
    app = web.Application(middlewares=[_refusing], client_max_size=_LARGEST)
    app.add_routes(
        [
            web.get("/", pages.root),
            web.post(f"{_ROOT}chat/completions", pages.chat),
            web.post(f"{_ROOT}messages", pages.messages),
            web.post(f"{_ROOT}messages/count_tokens", pages.count),
            web.get(f"{_ROOT}models", pages.models),
            web.get(_ROOT + "models/{id:.+}", pages.model),
            *[web.post(_ROOT + name, pages.unsupported) for name in _UNSUPPORTED],
        ]
    )
    return app


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever is refused, is so in the words of the protocol."""
    try:
        return await handler(request)
    except GatewayError as refused:
        return _refusal(request, refused)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(request, GatewayError(f"The request has more than {_LARGEST:,} bytes.", status=413))
    except web.RequestPayloadError as error:
        return _refusal(request, GatewayError(f"The body cannot be read: {error}"))
    except web.HTTPException as error:
        what = f"There is no {request.method} {request.path} here. {SUPPORTED}"
        return _refusal(request, GatewayError(what, status=error.status))


def _refusal(request: web.Request, refused: GatewayError) -> web.Response:
    is_anthropic = "/messages" in request.path or "anthropic-version" in request.headers
    body = (ANTHROPIC if is_anthropic else OPENAI).refusal(refused)
    headers = {
        "x-should-retry": "false"
    }  # OpenAI's and Anthropic's own libraries go by it: we have tried again already
    if refused.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(refused.retry_after))
    return web.Response(status=refused.status, body=body, content_type="application/json", headers=headers)
