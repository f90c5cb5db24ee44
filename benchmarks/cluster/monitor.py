"""What Redis does, and for whom: commands by the script that they are part of."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from batch_agent.cluster.redis import documents, updates
from batch_agent.cluster.redis.lua import calls, facts, work
from batch_agent.cluster.redis.lua.common import LuaScript

_SCRIPTS = {
    script.sha: name.lower()
    for module in (calls, documents, facts, updates, work)
    for name, script in vars(module).items()
    if isinstance(script, LuaScript)
}
FOR_AGENTS = (
    "submit", "lease", "write", "calls", "facts", "release", "reserve_rate", "acquire_permit", "release_permit",
    "xread", "?",
)  # fmt: skip
"""The others are for heartbeats, events, joining and leaving."""
_LINE = re.compile(rb'\+?[\d.]+ \[\d+ (\S+)\] "([^"]+)"(?: "([0-9a-f]{40})")?')
_NOT_COUNTED = ("info", "ping", "config", "client", "hello", "monitor")
_SETTLE_S = 0.2


@asynccontextmanager
async def watch(url: str) -> AsyncIterator[Counter[str]]:
    """Counts commands while the block runs. A script that is sent for the first time has no name: "?"."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"MONITOR\r\n")
    await reader.readline()
    counts: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(_count(reader, counts))
        try:
            yield counts
            await asyncio.sleep(_SETTLE_S)
        finally:
            counting.cancel()
            writer.close()


async def _count(reader: asyncio.StreamReader, counts: Counter[str]) -> None:
    current = "?"
    async for line in _lines(reader):
        found = _LINE.match(line)
        if found is None:
            continue
        source, command, sha = found[1], found[2].decode().lower(), (found[3] or b"").decode()
        if source != b"lua":
            current = _SCRIPTS.get(sha, "?") if command.startswith("eval") else command
        if current not in _NOT_COUNTED:
            counts[current] += 1


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Beginnings of lines, which may be long."""
    rest = b""
    while data := await reader.read(1 << 20):
        *lines, rest = (rest + data).split(b"\r\n")
        for line in lines:
            yield line[:200]
