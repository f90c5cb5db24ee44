"""What an expert writes for this work alone: aiohttp and orjson on bytes, slots that are free while tools run, calls
that are made once, retries that do as the server says, a collector that looks rarely."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import aiohttp
import orjson
from yarl import URL

from benchmarks.peers.work import Stopwatch, Tally, Work

Message = dict[str, Any]
_HEADERS = {"Content-Type": "application/json"}
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=300)


async def run(work: Work, tally: Tally) -> None:
    gc.set_threshold(10_000, 10, 10)
    journal = _journal(work.checkpoint)
    try:
        async with _session() as session, asyncio.TaskGroup() as group:
            loop = _Loop(work, tally, session, journal)
            for agent in range(work.agents):
                group.create_task(loop.one(agent))
    finally:
        if journal is not None:
            journal.close()


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    skipped = ("User-Agent", "Accept", "Accept-Encoding")
    async with aiohttp.ClientSession(
        connector=connector,
        headers=_HEADERS,
        timeout=_TIMEOUT,
        skip_auto_headers=skipped,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield session


class _Loop:
    def __init__(self, work: Work, tally: Tally, session: aiohttp.ClientSession, journal: IO[bytes] | None) -> None:
        self._work, self._tally, self._session, self._journal = work, tally, session, journal
        self._urls = [URL(f"{url}/v1/chat/completions", encoded=True) for url in work.urls]
        self._room = asyncio.Semaphore(work.inflight)
        self._options = work.options
        self._calls: dict[str, asyncio.Task[str]] = {}

    async def one(self, agent: int) -> None:
        messages = self._work.messages(agent)
        try:
            message = await self._ask(agent, messages)
            while calls := message.get("tool_calls"):
                messages.append(message)
                for call in calls:
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": await self._shared(call["function"])}
                    )
                message = await self._ask(agent, messages)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._tally.fail(agent, error)
        else:
            self._tally.tell(agent, message["content"])

    async def _ask(self, agent: int, messages: list[Message]) -> Message:
        """The slot is held while the server works, and at no other time."""
        url = self._urls[agent % len(self._urls)]
        for attempt in range(self._work.retries + 1):
            async with self._room:
                watch = Stopwatch(self._tally)
                body = orjson.dumps({**self._options, "messages": messages, "stream": self._work.is_streamed})
                async with self._session.post(url, data=body) as response:
                    if response.status == 200:
                        return await self._read(agent, response, watch)
                    if response.status not in (429, 500, 502, 503) or attempt == self._work.retries:
                        response.raise_for_status()
                    wait = float(response.headers.get("Retry-After") or 0.1 * 2**attempt)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _shared(self, call: dict[str, str]) -> str:
        """One execution for each distinct call."""
        arguments = call["arguments"]
        running = self._calls.get(arguments)
        if running is None:
            running = asyncio.ensure_future(self._tally.look(**orjson.loads(arguments)))
            self._calls[arguments] = running
        return await asyncio.shield(running)

    async def _read(self, agent: int, response: aiohttp.ClientResponse, watch: Stopwatch) -> Message:
        if self._work.is_streamed:
            message = await _streamed(response, watch)
        else:
            message = orjson.loads(await response.read())["choices"][0]["message"]
        if self._journal is not None:
            self._journal.write(orjson.dumps([agent, message]) + b"\n")
        return message


async def _streamed(response: aiohttp.ClientResponse, watch: Stopwatch) -> Message:
    """Of calls in a stream nothing is read: no work here has them."""
    rest, pieces = b"", list[str]()
    async for data in response.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                piece = orjson.loads(event[6:])["choices"][0]["delta"].get("content")
                if piece:
                    watch.see(piece)
                    pieces.append(piece)
    return {"content": "".join(pieces)}


def _journal(folder: str | None) -> IO[bytes] | None:
    if folder is None:
        return None
    Path(folder).mkdir(parents=True)
    return open(Path(folder) / "journal.jsonl", "wb")
