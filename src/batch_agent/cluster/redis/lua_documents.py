"""Documents, news, calls and queues in the Redis server, each at one stroke."""

from typing import Final

from .lua_common import COMMON, ONCE, SILENCE, LuaScript

_NEWS_KEPT = 20_000

# ARGV: once (3), name, is there an old one?, old, is there a new one?, new.
SWAP: Final = LuaScript.of(
    COMMON,
    ONCE,
    """
if before() then return 1 end
local key = run .. 'document:' .. ARGV[4]
local old = redis.call('GET', key)
if ARGV[5] == '1' then
  if old ~= ARGV[6] then return 0 end
elseif old then
  return 0
end
if ARGV[7] == '1' then redis.call('SET', key, ARGV[8]) elseif old then redis.call('DEL', key) end
keep('')
return 1
""",
)

# ARGV: name, worker. Gives 1: make it, 0: another one makes it, or its outcome. A call is "?WORKER" while it is made,
# "*WORKER" if others wait for it, and "!OUTCOME" afterwards.
CLAIM: Final = LuaScript.of(
    COMMON,
    SILENCE,
    """
local key, worker = run .. 'call:' .. ARGV[1], ARGV[2]
local found = redis.call('SET', key, '?' .. worker, 'NX', 'GET')
if not found then return 1 end
local kind, rest = string.sub(found, 1, 1), string.sub(found, 2)
if kind == '!' then return rest end
if rest == worker then return 1 end
if redis.call('EXISTS', run .. 'alive:' .. rest) == 1 or look(math.floor(micros() / 1000)).spares then
  if kind == '?' then redis.call('SET', key, '*' .. rest) end
  return 0
end
redis.call('SET', key, kind .. worker)
return 1
""",
)

# ARGV: name, worker, milliseconds (0: it is free again, -1: as long as the run), outcome.
LAND: Final = LuaScript.of(
    COMMON,
    f"""
local key, lasts = run .. 'call:' .. ARGV[1], tonumber(ARGV[3])
local found
if lasts == 0 then
  found = redis.call('GET', key)
elseif lasts < 0 then
  found = redis.call('SET', key, '!' .. ARGV[4], 'XX', 'GET')
else
  found = redis.call('SET', key, '!' .. ARGV[4], 'XX', 'GET', 'PX', ARGV[3])
end
if not found then return end
if found ~= '?' .. ARGV[2] and found ~= '*' .. ARGV[2] then
  if lasts == 0 then return end
  if string.sub(found, 1, 1) == '!' then
    redis.call('SET', key, found, 'KEEPTTL')
  else
    redis.call('SET', key, found)
  end
  return
end
if lasts == 0 then redis.call('DEL', key) end
if string.sub(found, 1, 1) == '?' then return end
redis.call('XADD', run .. 'news', 'MAXLEN', '~', {_NEWS_KEPT}, '*', 'landed', ARGV[1])
""",
)

# ARGV: once (3), data.
TELL: Final = LuaScript.of(
    COMMON,
    ONCE,
    f"""
if before() then return end
redis.call('XADD', run .. 'news', 'MAXLEN', '~', {_NEWS_KEPT}, '*', 'told', ARGV[4])
keep('')
""",
)

# ARGV: once (3), name, microseconds from one to the next, and ahead of time. Gives microseconds.
TURN: Final = LuaScript.of(
    COMMON,
    ONCE,
    """
local answer = before()
if answer then return answer end
local key, interval, ahead = run .. 'turn:' .. ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local now = micros()
local due = math.max(tonumber(redis.call('GET', key) or 0), now)
redis.call('SET', key, whole(due + interval), 'PX', whole(math.ceil((due + interval - now) / 1000) + 1))
local wait = whole(math.max(0, due - ahead - now))
keep(wait)
return wait
""",
)
