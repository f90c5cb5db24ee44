"""How many tokens a text is, from a server that says it."""

from collections.abc import Awaitable, Callable
from typing import Any

from ..core.json import dumps
from .flavors import Flavor
from .http.client import ServerClient
from .http.json_body import BadJson, loads
from .probe import admin_url

_WITHIN = 5.0
_VLLM_LIKE = ("vllm", "sglang", "sim")
_LLAMACPP_LIKE = ("llama.cpp", "local")

Count = Callable[[str], Awaitable[int | None]]


def counter_of(server: ServerClient, flavor: Flavor, model: str) -> Count | None:
    """How this kind of server is asked; None for one that does not say."""
    if flavor.name in _VLLM_LIKE:
        return _Tokenizer(server, "prompt", {"model": model}).count
    if flavor.name in _LLAMACPP_LIKE:
        return _Tokenizer(server, "content", {}).count
    return None


class _Tokenizer:
    """The `/tokenize` page of a server, which takes the text under a name of its own."""

    def __init__(self, server: ServerClient, field: str, others: dict[str, str]) -> None:
        self._server = server
        self._url = admin_url(server.root, "/tokenize")
        self._field = field
        self._others = others

    async def count(self, text: str) -> int | None:
        said = await self._ask({**self._others, self._field: text})
        if not isinstance(said, dict):
            return None
        tokens = said.get("tokens")
        found = said.get("count", len(tokens) if isinstance(tokens, list) else None)
        return found if isinstance(found, int) and found > 0 else None

    async def _ask(self, body: dict[str, str]) -> Any:
        said = await self._server.try_post(self._url, dumps(body), _WITHIN)
        try:
            return None if said is None else loads(said)
        except BadJson:
            return None
