"""Whole runs against servers that answer with more than anybody can hold: each ends as its agent's failure."""

import asyncio
import gzip
import sys
from collections.abc import Awaitable, Callable
from functools import cache

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server

_PROGRAM = """
import asyncio, sys
from batch_agent import BatchAgent

inputs, streams = [{"x": 1}, {"x": 2}], sys.argv[2] == "streams"
run = BatchAgent.run(
    task="Say {x}", inputs=inputs, streaming=streams, backend=sys.argv[1], max_retries=0, progress=False
)
for result in asyncio.run(run):
    print(result.error)
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(int(peak) // 1024)  # unlike ru_maxrss, it does not begin with what the parent had
"""
_PIECE = b"x" * 1_000_000
_MOST = 3000
"""Pieces that a server sends before it gives up: far more than a test machine has memory for."""

Send = Callable[[Line], Awaitable[None]]


async def a_body(line: Line) -> None:
    await line.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"choices": [{"message": {"content": "')
    await pieces(line)


async def a_body_in_chunks(line: Line) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(_MOST):
        await line.send(b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE))


async def an_event(line: Line) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ")
    await pieces(line)


async def events(line: Line) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    event = b"data: " + orjson.dumps({"choices": [{"delta": {"content": "x" * 500_000}}]}) + b"\n\n"
    for _ in range(_MOST):
        await line.send(event)


async def a_head(line: Line) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\nx-mark: ")
    await pieces(line)


async def a_refusal(line: Line) -> None:
    await line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await pieces(line)


async def a_packed_body(line: Line) -> None:
    await line.reply(200, bomb(), "content-type: application/json\r\ncontent-encoding: gzip\r\n")


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(400_000_000), 1)


async def pieces(line: Line) -> None:
    for _ in range(_MOST):
        await line.send(_PIECE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "words"),
    [
        (a_body, "larger than 64 MiB"),
        (a_body_in_chunks, "larger than 64 MiB"),
        (an_event, "an event larger than 32 MiB"),
        (events, "larger than 256 MiB"),
        (a_head, "head is larger than 64 KiB"),
        (a_refusal, "larger than 64 MiB"),
        (a_packed_body, "larger than 64 MiB"),
    ],
)
async def test_an_endless_response_fails_its_agent_and_does_not_fill_memory(send: Send, words: str) -> None:
    streams = send in (an_event, events)

    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, b'{"data": [{"id": "m"}]}')
        else:
            await send(line)

    async with raw_server(answer) as server, asyncio.timeout(300):
        program = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", _PROGRAM, server.url, "streams" if streams else ""], stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        *failures, peak = (await program.stdout.read()).decode().splitlines()
        assert await program.wait() == 0
    assert len(failures) == 2
    assert all(words in failure for failure in failures)
    assert int(peak) < 900  # MiB: what two answers may hold at most, and a copy
