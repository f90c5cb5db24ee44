"""Proxy in front of a simulated engine that keeps the requests as they arrived."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from .loopback_servers import Line, RawRequest, RawServer, raw_server


@asynccontextmanager
async def recording_proxy(upstream: str) -> AsyncIterator[RawServer]:
    """Passes each request on, and the whole response back."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: RawRequest, line: Line) -> None:
            headers = {"content-type": "application/json"}
            async with session.request(
                request.method, upstream + request.path, data=request.body or None, headers=headers
            ) as response:
                body, kind = await response.read(), response.headers["content-type"]
            await line.reply(response.status, body, f"content-type: {kind}\r\n")

        async with raw_server(forward) as server:
            yield server


def generations(server: RawServer) -> list[dict[str, Any]]:
    """Bodies of the requests for answers, in the order in which they arrived."""
    return [orjson.loads(each.body) for each in server.requests if each.method == "POST" and b'"messages"' in each.body]
