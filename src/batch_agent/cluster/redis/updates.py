"""Updates in Redis: three streams."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ... import aio
from ...core.coordinator import Cursor, Updates
from ...store.codec import decode_completion
from .keyspace import RedisKeyspace
from .lua.common import COMMON, MAX_UPDATES, LuaScript
from .registration import RunRegistration

_POLL_INTERVAL = 0.04
"""Seconds between two polls, so that updates in close succession are read together."""
_PAGE = 1_000
_MAX_REPEAT_DISTANCE = 1_000
"""Number of recent messages among which a repeated one is searched."""
_ENDED, _EVENTS, _NEWS = "ended", "events", "news"
_STREAMS = (_ENDED, _EVENTS, _NEWS)
"""In the order of a cursor. Workers read only the last one."""
_NOT_READ = "-"
"""Value in a cursor for a stream that is not read."""

# ARGV: stream, mark, data of a message that may already be there.
PUBLISH_AGAIN: Final = LuaScript.of(
    COMMON,
    f"""
local stream, mark = run .. ARGV[1], ARGV[2]
for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', '-', 'COUNT', {_MAX_REPEAT_DISTANCE})) do
  if entry[2][4] == mark then return end
end
redis.call('XADD', stream, 'MAXLEN', '~', {MAX_UPDATES}, '*', 'told', ARGV[3], 'mark', mark)
""",
)


class RedisUpdateStream:
    """Updates of a run."""

    def __init__(self, keyspace: RedisKeyspace, registration: RunRegistration) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection
        self._registration = registration
        self._next_poll = 0.0

    async def position(self, *, completions: bool = True) -> Cursor:
        streams = [("XREVRANGE", self._keyspace.key(name), "+", "-", "COUNT", 1) for name in _STREAMS]
        last = [rows[0][0].decode() if rows else "0-0" for rows in await self._connection.pipeline(streams)]
        return tuple(last) if completions else (_NOT_READ, _NOT_READ, last[-1])

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        deadline = aio.now() + wait
        positions = {name: index for name, index in zip(_STREAMS, after, strict=True) if index != _NOT_READ}
        rows_by_stream: dict[str, list[Any]] = {name: [] for name in _STREAMS}
        is_all = False
        if (pause := min(self._next_poll, deadline) - aio.now()) > 0:
            await asyncio.sleep(pause)
        while not is_all:
            left = 0.0 if any(rows_by_stream.values()) else deadline - aio.now()
            found = await self._keyspace.streams(positions, _PAGE, left)
            for name, rows in found.items():
                rows_by_stream[name] += rows
                positions[name] = rows[-1][0].decode()
            is_all = all(len(rows) < _PAGE for rows in found.values()) and (left <= 0 or bool(found))
            if not found:
                await self._registration.check()
        self._next_poll = aio.now() + _POLL_INTERVAL
        return _updates(tuple(positions.get(name, _NOT_READ) for name in _STREAMS), rows_by_stream)

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        await self._keyspace.add_message(_NEWS if to_workers else _EVENTS, data, PUBLISH_AGAIN)


def _updates(after: Cursor, rows_by_stream: Mapping[str, Sequence[Any]]) -> Updates:
    items = [item for name in (_EVENTS, _NEWS) for _, fields in rows_by_stream[name] for item in fields.items()]
    return Updates(
        after,
        tuple(
            decode_completion(line)
            for _, fields in rows_by_stream[_ENDED]
            for lines in fields.values()
            for line in lines.splitlines()
        ),
        tuple(data.decode() for kind, data in items if kind == b"landed"),
        tuple(data for kind, data in items if kind == b"told"),
    )
