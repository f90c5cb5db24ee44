"""Lua scripts for permits in the Redis server: executions of a tool that all workers count together. Each is atomic.

`permits:NAME` is a hash with the number of permits of each worker, and the field "?" if a worker waits for one.
"""

from typing import Final

from .lua_common import COMMON, IDEMPOTENCE, OUTAGE_GRACE, LuaScript
from .lua_documents import MAX_UPDATES

# ARGV: once (3), name, worker, limit. Returns 1: granted, 0: other workers have them all. Permits of workers that are
# gone are free.
ACQUIRE_PERMIT: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
    """
local previous = previous_result()
if previous then return tonumber(previous) end
local key, worker, limit = run .. 'permits:' .. ARGV[4], ARGV[5], tonumber(ARGV[6])
local held, others, counts, fields = 0, {}, {}, {}
local found = redis.call('HGETALL', key)
for index = 1, #found, 2 do
  local other, count = found[index], tonumber(found[index + 1])
  if other == worker then
    held = held + count
  elseif other ~= '?' then
    others[#others + 1], counts[#counts + 1], fields[#fields + 1] = other, count, 'alive:' .. other
  end
end
if #others > 0 then
  local now = math.floor(micros() / 1000)
  local meta, alive = read_with_meta(now, fields)
  for index, other in ipairs(others) do
    if meta.spares_expired or (tonumber(alive[index]) or 0) > now then
      held = held + counts[index]
    else
      redis.call('HDEL', key, other)
    end
  end
end
local granted = held < limit and 1 or 0
if granted == 1 then redis.call('HINCRBY', key, worker, 1) else redis.call('HSET', key, '?', 1) end
keep_result(granted)
save()
return granted
""",
)

# ARGV: once (3), name, worker, name of the update for workers that wait.
RELEASE_PERMIT: Final = LuaScript.of(
    COMMON,
    IDEMPOTENCE,
    f"""
if previous_result() then return end
local key, worker = run .. 'permits:' .. ARGV[4], ARGV[5]
local count = tonumber(redis.call('HGET', key, worker) or 0)
if count > 1 then redis.call('HINCRBY', key, worker, -1) else redis.call('HDEL', key, worker) end
if redis.call('HDEL', key, '?') == 1 then
  redis.call('XADD', run .. 'news', 'MAXLEN', '~', {MAX_UPDATES}, '*', 'landed', ARGV[6])
end
keep_result('')
save()
""",
)
