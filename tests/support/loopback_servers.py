"""Loopback servers that send exactly the bytes that a test gives them, faults included."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from yarl import URL

from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport


@dataclass
class RawRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Line:
    """One connection, from the server's end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: bytes, headers: str = "", *, length: int | None = None) -> None:
        size = len(body) if length is None else length
        await self.send(f"HTTP/1.1 {status} Status\r\n{headers}content-length: {size}\r\n\r\n".encode() + body)

    async def say(self, text: str) -> None:
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        await self.reply(200, orjson.dumps({"choices": [choice]}), "content-type: application/json\r\n")

    async def open_stream(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def event(self, data: Any) -> None:
        body = b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n"
        await self.send(b"%x\r\n%b\r\n" % (len(body), body))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.writer.close()

    def hang_up_if_idle(self) -> None:
        """Closes the connection unless a request has arrived on it, read or not."""
        transport = self.writer.transport
        if transport.is_closing() or self.reader._buffer:  # type: ignore[attr-defined]
            return
        raw = socket.socket(fileno=os.dup(self.writer.get_extra_info("socket").fileno()))
        try:
            raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            raw.shutdown(socket.SHUT_WR)  # at once: `close` waits for the next round of the loop
            transport.close()
        finally:
            raw.close()

    def reset(self) -> None:
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Returns when the client has hung up."""
        try:
            async with asyncio.timeout(60):
                while await self.reader.read(4096):
                    pass
        except ConnectionError:
            pass


Answer = Callable[[RawRequest, Line], Awaitable[None]]


@dataclass
class RawServer:
    url: str
    requests: list[RawRequest] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def raw_server(answer: Answer) -> AsyncIterator[RawServer]:
    """Gives every request to `answer`, one after the other on each connection. At its end, no task of it is left."""
    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            while request := await _read(reader):
                server.requests.append(request)
                await answer(request, Line(reader, writer))
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # not raised: asyncio would report a cancelled handler as an error
        finally:
            serving.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = RawServer(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield server
    finally:
        listener.close()
        await asyncio.sleep(0)  # a connection that was just accepted gets its task
        while serving:
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)
        await listener.wait_closed()


async def _read(reader: asyncio.StreamReader) -> RawRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return RawRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def server_at(url: str) -> ServerClient:
    """As a backend sees it."""
    root = URL(url) / "v1"
    return ServerClient(open_transport(root, {}), root)
