"""The addresses of one host, looked up once for all who connect at the same time."""

import asyncio
import socket
from typing import Any

from yarl import URL

from .wire import NoConnection

_GOOD_FOR = 10.0

Addresses = list[tuple[Any, ...]]


class Resolver:
    """Keeps what a look-up found for some seconds."""

    def __init__(self, root: URL) -> None:
        self._root = root
        self._addresses: Addresses = []
        self._good_until = 0.0
        self._looking_up = asyncio.Lock()

    async def addresses(self) -> Addresses:
        """As getaddrinfo gives them. Raises NoConnection."""
        loop = asyncio.get_running_loop()
        async with self._looking_up:
            if loop.time() >= self._good_until:
                try:
                    self._addresses = await loop.getaddrinfo(self._root.host, self._root.port, type=socket.SOCK_STREAM)
                except OSError as error:
                    raise NoConnection(str(error)) from error
                self._good_until = loop.time() + _GOOD_FOR
        return self._addresses
