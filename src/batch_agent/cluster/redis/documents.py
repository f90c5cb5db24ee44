"""Documents in Redis, each in a key of its own."""

from typing import Final

from ...core.coordinator import Document
from .keyspace import RedisKeyspace
from .lua.common import COMMON, IDEMPOTENCE, LuaScript
from .registration import RunRegistration

# ARGV: once (3), name, has old, old, has new, new.
COMPARE_AND_SET: Final = LuaScript.of(
    COMMON,
    IDEMPOTENCE,
    """
if previous_result() then return 1 end
local key = run .. 'document:' .. ARGV[4]
local old = redis.call('GET', key)
if ARGV[5] == '1' then
  if old ~= ARGV[6] then return 0 end
elseif old then
  return 0
end
if ARGV[7] == '1' then redis.call('SET', key, ARGV[8]) elseif old then redis.call('DEL', key) end
keep_result('')
save()
return 1
""",
)


class RedisDocuments:
    """Documents of a run, each in a key of its own."""

    def __init__(self, keyspace: RedisKeyspace, registration: RunRegistration) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection
        self._registration = registration

    async def read(self, name: str) -> Document:
        commands = [("GET", self._keyspace.key(f"document:{name}")), ("TIME",)]
        data, (seconds, micros) = await self._connection.pipeline(commands)
        return Document(data, int(seconds) + int(micros) / 1e6)

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        await self._registration.register()
        values = (name, int(old is not None), old or b"", int(new is not None), new or b"")
        return bool(await self._keyspace.run_idempotent(COMPARE_AND_SET, *values))
