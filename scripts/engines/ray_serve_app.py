"""Two replicas behind Ray Serve that pass requests on to an OpenAI-compatible engine.

    python ray_serve_app.py PORT ENGINE_URL FOLDER

Each replica leaves a file in FOLDER, with its process id as the name. Runs until it is killed.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse


@serve.deployment(num_replicas=2, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
class Proxy:
    """One replica."""

    def __init__(self, engine: str, folder: str) -> None:
        self._engine = engine
        self._session: aiohttp.ClientSession | None = None
        Path(folder, str(os.getpid())).touch()

    async def __call__(self, request: Request) -> Response:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url, kept = f"{self._engine}{request.url.path}", ("content-type", "authorization")
        headers = {name: value for name, value in request.headers.items() if name in kept}
        answer = await self._session.request(request.method, url, data=await request.body(), headers=headers)
        return StreamingResponse(_chunks(answer), answer.status, {"content-type": answer.headers["content-type"]})


async def _chunks(answer: Any) -> AsyncIterator[bytes]:
    async with answer:
        async for chunk in answer.content.iter_any():
            yield chunk


def main(port: int, engine: str, folder: str) -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment: Any = Proxy  # the decorator is not typed
    serve.run(deployment.bind(engine, folder))
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
