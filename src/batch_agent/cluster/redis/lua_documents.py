"""Lua scripts for documents, updates, calls and rate limits in the Redis server. Each is atomic."""

from typing import Final

from .lua_common import COMMON, IDEMPOTENCE, OUTAGE_GRACE, LuaScript

MAX_UPDATES = 20_000

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
return 1
""",
)

# ARGV: name, worker. Returns 1: claimed, 0: another worker makes it, or the outcome. A call is "?WORKER" while it is
# made, "*WORKER" if other workers wait for it, and "!OUTCOME" afterwards.
CLAIM: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    """
local key, worker = run .. 'call:' .. ARGV[1], ARGV[2]
local found = redis.call('SET', key, '?' .. worker, 'NX', 'GET')
if not found then return 1 end
local kind, rest = string.sub(found, 1, 1), string.sub(found, 2)
if kind == '!' then return rest end
if rest == worker then return 1 end
if redis.call('EXISTS', run .. 'alive:' .. rest) == 1 or read_meta(math.floor(micros() / 1000)).spares_expired then
  if kind == '?' then redis.call('SET', key, '*' .. rest) end
  return 0
end
redis.call('SET', key, kind .. worker)
return 1
""",
)

# ARGV: name, worker, ttl in milliseconds (0: release the claim, -1: as long as the run), outcome.
COMPLETE_CALL: Final = LuaScript.of(
    COMMON,
    f"""
local key, ttl = run .. 'call:' .. ARGV[1], tonumber(ARGV[3])
local found
if ttl == 0 then
  found = redis.call('GET', key)
elseif ttl < 0 then
  found = redis.call('SET', key, '!' .. ARGV[4], 'XX', 'GET')
else
  found = redis.call('SET', key, '!' .. ARGV[4], 'XX', 'GET', 'PX', ARGV[3])
end
if not found then return end
if found ~= '?' .. ARGV[2] and found ~= '*' .. ARGV[2] then
  if ttl == 0 then return end
  if string.sub(found, 1, 1) == '!' then
    redis.call('SET', key, found, 'KEEPTTL')
  else
    redis.call('SET', key, found)
  end
  return
end
if ttl == 0 then redis.call('DEL', key) end
if string.sub(found, 1, 1) == '?' then return end
redis.call('XADD', run .. 'news', 'MAXLEN', '~', {MAX_UPDATES}, '*', 'landed', ARGV[1])
""",
)

# ARGV: once (3), data.
PUBLISH: Final = LuaScript.of(
    COMMON,
    IDEMPOTENCE,
    f"""
if previous_result() then return end
redis.call('XADD', run .. 'news', 'MAXLEN', '~', {MAX_UPDATES}, '*', 'told', ARGV[4])
keep_result('')
""",
)

# ARGV: once (3), name, interval and ahead in microseconds. Returns microseconds to wait.
RESERVE_RATE: Final = LuaScript.of(
    COMMON,
    IDEMPOTENCE,
    """
local previous = previous_result()
if previous then return previous end
local key, interval, ahead = run .. 'turn:' .. ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local now = micros()
local due = math.max(tonumber(redis.call('GET', key) or 0), now)
redis.call('SET', key, integer(due + interval), 'PX', integer(math.ceil((due + interval - now) / 1000) + 1))
local wait = integer(math.max(0, due - ahead - now))
keep_result(wait)
return wait
""",
)
