"""Token counts from servers that have a tokenizer page."""

from collections.abc import Awaitable, Callable
from typing import Any

from ..core.json import dumps
from ..core.requests import Request, packed_ids
from .dialects.openai.encoder import OpenAIChat
from .flavors import Flavor
from .http.client import ServerClient
from .http.json_body import BadJson, loads
from .probe import admin_url

_TIMEOUT = 5.0
_RENDER_TIMEOUT = 60.0
"""Seconds. An agent waits for it before a turn, which takes longer on a server that is so busy."""
_VLLM_LIKE = ("vllm", "sglang", "sim")
_LLAMACPP_LIKE = ("llama.cpp", "local")

CountTokens = Callable[[str], Awaitable[int | None]]
RenderPrompt = Callable[[Request], Awaitable[bytes | None]]


def token_counter_for(server: ServerClient, flavor: Flavor, model: str) -> CountTokens | None:
    """Counts tokens with this kind of server; None for servers without a tokenizer page."""
    if flavor.name in _VLLM_LIKE:
        return _Tokenizer(server, "prompt", {"model": model}).count
    if flavor.name in _LLAMACPP_LIKE:
        return _Tokenizer(server, "content", {}).count
    return None


def prompt_renderer_for(server: ServerClient, dialect: object) -> RenderPrompt | None:
    """Renders prompts as this server does; None for dialects without token ids."""
    return _Renderer(server, dialect).render if isinstance(dialect, OpenAIChat) else None


class _Renderer:
    """The `/tokenize` page of a server, for the messages of a request."""

    def __init__(self, server: ServerClient, dialect: OpenAIChat) -> None:
        self._server = server
        self._url = admin_url(server.root, "/tokenize")
        self._dialect = dialect

    async def render(self, request: Request) -> bytes | None:
        reply = await self._server.post_or_none(self._url, self._dialect.encode_rendering(request), _RENDER_TIMEOUT)
        try:
            return None if reply is None else packed_ids(loads(reply)["tokens"])
        except (BadJson, TypeError, KeyError, OverflowError):
            return None


class _Tokenizer:
    """The `/tokenize` page of a server. The name of its text field depends on the server."""

    def __init__(self, server: ServerClient, field: str, others: dict[str, str]) -> None:
        self._server = server
        self._url = admin_url(server.root, "/tokenize")
        self._field = field
        self._others = others

    async def count(self, text: str) -> int | None:
        reply = await self._post({**self._others, self._field: text})
        if not isinstance(reply, dict):
            return None
        tokens = reply.get("tokens")
        count = reply.get("count", len(tokens) if isinstance(tokens, list) else None)
        return count if isinstance(count, int) and count > 0 else None

    async def _post(self, body: dict[str, str]) -> Any:
        reply = await self._server.post_or_none(self._url, dumps(body), _TIMEOUT)
        try:
            return None if reply is None else loads(reply)
        except BadJson:
            return None
