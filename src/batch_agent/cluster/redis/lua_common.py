"""Common parts of the Lua scripts that run in the Redis server. The prefix of the run's keys is their only KEYS entry.

Keys: `work` is the stream of jobs, with one consumer group of workers. `agents` has, for each agent that has not
ended, "token attempts entry worker". `endings` has "token failed json" of the others, and the stream `ended` announces
them. `facts:KEY` are lists. `workers` has "number rest floor input cached output" of each worker's last batch, and the
keys that were refused in it. `alive:WORKER` expires when its worker stops renewing. `meta` has the last token, the
time of the last renewal by any worker, that worker's ttl, and until when expired leases are spared. `bell` wakes up
workers that wait for work. `once` has the results of calls that may be repeated.
"""

from hashlib import sha1
from typing import Final

from ...core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script and its SHA-1, for EVALSHA."""

    text: str
    sha: str

    @classmethod
    def of(cls, *parts: str) -> "LuaScript":
        text = "\n".join(parts)
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


GROUP: Final = "workers"
RELEASED_CONSUMER: Final = "nobody"
"""Consumer that has the agents that were released."""

REQUIRED_SERVER: Final = "Redis 7.0 or newer, or Valkey 7.2 or newer, is required."
"""Tool calls are claimed with SET ... NX GET, which earlier versions do not have. Valkey reports the Redis version that
it is compatible with."""

USE_INSTEAD_OF_CLUSTER: Final = (
    "All keys of a run are in one slot, so that a cluster would use one of its nodes. Use a standalone server, or one "
    "with replicas and Sentinel (redis+sentinel://HOST:26379/SERVICE/0)."
)

MAX_LEASE: Final = 30 * 24 * 3600.0
"""Seconds; longer than any lease."""

# An entry's idle time encodes its lease: it is MAX_LEASE when the lease expires, and 2 * MAX_LEASE when it was
# released. So leases of different lengths fit in one group.
COMMON: Final = f"""
local run = KEYS[1]
local MAX_LEASE = {MAX_LEASE * 1_000:.0f}
local GROUP, RELEASED_CONSUMER = '{GROUP}', '{RELEASED_CONSUMER}'

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function integer(number)
  return string.format('%.0f', number)
end

local function owner(record)
  if not record then return nil end
  local token, attempts, entry, worker = string.match(record, '^(%d+) (%d+) (%S+) (.*)$')
  return {{token = token, attempts = tonumber(attempts), entry = entry, worker = worker}}
end

local function slice(list, first, last)
  return unpack(list, first, math.min(last, #list))
end

local function many(command, key, list)
  for first = 1, #list, 1000 do
    redis.call(command, key, slice(list, first, first + 999))
  end
end

local function claim(worker, entries, idle)
  for first = 1, #entries, 1000 do
    local call = {{'XCLAIM', run .. 'work', GROUP, worker, 0}}
    for index = first, math.min(first + 999, #entries) do call[#call + 1] = entries[index] end
    call[#call + 1] = 'IDLE'
    call[#call + 1] = integer(idle)
    call[#call + 1] = 'JUSTID'
    redis.call(unpack(call))
  end
end

local function wake_up()
  redis.call('XADD', run .. 'bell', 'MAXLEN', 1, '*', 'ring', '')
end

local function held(worker, first)
  local keys, mine, others = {{}}, {{}}, {{}}
  for index = first, #ARGV, 2 do keys[#keys + 1] = ARGV[index] end
  if #keys == 0 then return mine, others end
  local records = redis.call('HMGET', run .. 'agents', unpack(keys))
  for index, key in ipairs(keys) do
    local one = owner(records[index])
    local token = ARGV[first + 2 * index - 1]
    if one and one.token == token and one.worker == worker then
      mine[#mine + 1] = one.entry
    else
      others[#others + 1] = {{key, token, one}}
    end
  end
  return mine, others
end

local function free(entries)
  local keys, records = {{}}, {{}}
  for index, entry in ipairs(entries) do
    local found = redis.call('XRANGE', run .. 'work', entry, entry)[1]
    keys[index] = found and found[2][1] or ''
  end
  for index, record in ipairs(redis.call('HMGET', run .. 'agents', unpack(keys))) do
    local one = owner(record)
    if one and one.entry == entries[index] then
      records[#records + 1] = keys[index]
      records[#records + 1] = one.token .. ' ' .. math.max(0, one.attempts - 1) .. ' ' .. one.entry .. ' ' .. one.worker
    end
  end
  if #records > 0 then redis.call('HSET', run .. 'agents', unpack(records)) end
  claim(RELEASED_CONSUMER, entries, 2 * MAX_LEASE)
  wake_up()
end
"""

# After a long silence it is unknown whether the workers were gone or the server was: workers get the duration of a
# lease to renew.
OUTAGE_GRACE: Final = """
local function read_meta(now)
  local found = redis.call('HMGET', run .. 'meta', 'token', 'seen', 'lasts', 'grace')
  local meta = {token = tonumber(found[1]) or 0, grace = tonumber(found[4]) or 0}
  local seen, ttl = tonumber(found[2]), tonumber(found[3])
  if seen and now - seen > 0.75 * ttl then meta.grace = now + ttl end
  meta.spares_expired = now < meta.grace
  return meta
end

local function record_renewal(meta, now, worker, ttl)
  redis.call('SET', run .. 'alive:' .. worker, '', 'PX', ttl)
  redis.call('HSET', run .. 'meta', 'token', integer(meta.token), 'seen', integer(now), 'lasts', ttl,
    'grace', integer(meta.grace))
end
"""

# A repeated call finds its result in its slot, if its number is there; a slot has one call at a time.
IDEMPOTENCE: Final = """
local slot, number, is_repeated = ARGV[1], ARGV[2], ARGV[3] == '1'

local function previous_result()
  if not is_repeated then return nil end
  local found = redis.call('HGET', run .. 'once', slot)
  if not found then return nil end
  local last, result = string.match(found, '^(%d+) (.*)$')
  if last == number then return result end
end

local function keep_result(result)
  redis.call('HSET', run .. 'once', slot, number .. ' ' .. result)
end
"""
