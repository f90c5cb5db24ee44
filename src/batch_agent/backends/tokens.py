"""How many tokens a text is, from a server that says it."""

from collections.abc import Awaitable, Callable

import aiohttp
import orjson

from .flavors import Flavor
from .http import Server
from .probe import beside

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_FLAVORS = ("vllm", "sglang", "sim")

Count = Callable[[str], Awaitable[int | None]]


def counter_of(server: Server, flavor: Flavor, model: str) -> Count | None:
    """How this kind of server is asked; None for one that does not say."""
    if flavor.name not in _FLAVORS:
        return None
    url = beside(server.root, "/tokenize")

    async def count(text: str) -> int | None:
        body = orjson.dumps({"model": model, "prompt": text})
        try:
            async with server.session.post(url, data=body, timeout=_TIMEOUT, allow_redirects=False) as response:
                said = orjson.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        found = said.get("count") if isinstance(said, dict) else None
        return found if isinstance(found, int) and found > 0 else None

    return count
