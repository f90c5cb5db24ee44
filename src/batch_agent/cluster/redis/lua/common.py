"""Common parts of the Lua scripts that run in the Redis server. The prefix of the run's keys is their only KEYS entry.

Commands inside scripts cost as much as others, so a script reads and writes many fields with one command each. Each
argument costs the client some microseconds, so what is about many agents is two of them: a JSON list, and all data one
after the other, which `cutter` cuts by the lengths in the list. Almost everything is in one hash, `state`:

- `agent:KEY`: "token attempts worker" of an agent that has not ended, "! token failed" of one that has. Without a
  worker it is in the list `queue`, with one in the sorted set `leases`, by the time at which its lease expires.
  `data:KEY`: its job, and afterwards its completion.
- `facts:KEY 1`, `facts:KEY 2` ...: facts of an agent, or of a chunk of it, each with all facts of one message.
  `entries:KEY`: how many there are.
- `worker:NAME`: "number rest floor" of a worker's last batch, and the keys that were refused in it.
- `alive:NAME`: until when a worker counts as alive.
- `call:NAME`: "?WORKER" while a worker makes the call, "*WORKER" if others wait for it, "!UNTIL OUTCOME" afterwards, or
  "@" if the outcome is in a key of its own.
- `once:SLOT`: results of calls that may be repeated.
- `pending`: agents that have not ended; `spent`: usage of all replies; `born`: the creation mark.
- `token`: the last token; `seen`, `lasts` and `grace`: the last renewal by any worker, that worker's ttl, and until
  when expired leases are spared.

Streams: `ended` announces completions, `events` has messages for submitters and `news` what concerns workers; `bell`
wakes up workers that wait for work. Times are in milliseconds.
"""

from hashlib import sha1
from typing import Final

from ....core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script and its SHA-1, for EVALSHA."""

    text: str
    sha: str

    @classmethod
    def of(cls, *parts: str) -> "LuaScript":
        text = "\n".join(parts)
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


REQUIRED_SERVER: Final = "Redis 7.0 or newer, or Valkey 7.2 or newer, is required."
"""Valkey reports the Redis version that it is compatible with."""

LOST: Final = "LOSTRUN"
"""Error of a script that finds part of the run missing."""


USE_INSTEAD_OF_CLUSTER: Final = (
    "All keys of a run are in one slot, so that a cluster would use one of its nodes. Use a standalone server, or one "
    "with replicas and Sentinel (redis+sentinel://HOST:26379/SERVICE/0)."
)

NAME_THE_PRIMARY: Final = (
    "A run writes: name its primary, or use redis+sentinel://HOST:26379/SERVICE/0, which finds the primary."
)

MAX_LEASE: Final = 30 * 24 * 3600.0
"""Maximum duration of a lease, in seconds."""
MAX_UPDATES: Final = 20_000
"""Maximum length of each stream of updates, except that of completions."""

COMMON: Final = """
local run = KEYS[1]
local changes = {}

local function read(fields)
  return redis.call('HMGET', run .. 'state', unpack(fields))
end

local function set(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

local function save()
  if #changes > 0 then redis.call('HSET', run .. 'state', unpack(changes)) end
  changes = {}
end

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function integer(number)
  return string.format('%.0f', number)
end

local function owner(record)
  if not record then return nil end
  local token, attempts, worker = string.match(record, '^(%d+) (%d+) (.*)$')
  return token and {token = token, attempts = tonumber(attempts), worker = worker}
end

local function record(one)
  return one.token .. ' ' .. one.attempts .. ' ' .. one.worker
end

local function set_expiry(keys, expires)
  if #keys == 0 then return end
  local call = {'ZADD', run .. 'leases'}
  for _, key in ipairs(keys) do
    call[#call + 1] = integer(expires)
    call[#call + 1] = key
  end
  redis.call(unpack(call))
end

local function wake_up()
  redis.call('XADD', run .. 'bell', 'MAXLEN', 1, '*', 'ring', '')
end

local function held(worker, first, records)
  local mine, others = {}, {}
  for index = first, #ARGV, 2 do
    local found = records[(index - first) / 2 + 1]
    local one = owner(found)
    if one and one.token == ARGV[index + 1] and one.worker == worker then
      mine[#mine + 1] = {key = ARGV[index], one = one}
    else
      others[#others + 1] = {key = ARGV[index], token = ARGV[index + 1], record = found}
    end
  end
  return mine, others
end

local function cutter(argument)
  local position = 1
  return function(length)
    position = position + length
    return string.sub(argument, position - length, position - 1)
  end
end

local function agent_fields(first)
  local fields = {}
  for index = first, #ARGV, 2 do fields[#fields + 1] = 'agent:' .. ARGV[index] end
  return fields
end

local function free(mine)
  if #mine == 0 then return end
  local keys = {}
  for index, each in ipairs(mine) do
    keys[index] = each.key
    each.one.attempts, each.one.worker = math.max(0, each.one.attempts - 1), ''
    set('agent:' .. each.key, record(each.one))
  end
  save()
  redis.call('ZREM', run .. 'leases', unpack(keys))
  redis.call('LPUSH', run .. 'queue', unpack(keys))
  wake_up()
end
"""

# After a long silence, it is unknown whether the workers were gone or the server was. Workers get the duration of one
# lease to renew.
OUTAGE_GRACE: Final = """
local function read_with_meta(now, fields)
  for _, field in ipairs({'token', 'seen', 'lasts', 'grace'}) do fields[#fields + 1] = field end
  local found = read(fields)
  local first = #fields - 3
  local meta = {token = tonumber(found[first]) or 0, grace = tonumber(found[first + 3]) or 0}
  local seen, ttl = tonumber(found[first + 1]), tonumber(found[first + 2])
  if seen and now - seen > 0.75 * ttl then meta.grace = now + ttl end
  meta.spares_expired = now < meta.grace
  return meta, found
end

local function record_renewal(meta, now, worker, ttl)
  set('alive:' .. worker, integer(now + ttl))
  set('token', integer(meta.token))
  set('seen', integer(now))
  set('lasts', integer(ttl))
  set('grace', integer(meta.grace))
end
"""

# The slot of a call stores its number and result, where a repeated call finds them. A slot serves one call at a time.
IDEMPOTENCE: Final = """
local slot, number, is_repeated = 'once:' .. ARGV[1], ARGV[2], ARGV[3] == '1'

local function previous_result()
  if not is_repeated then return nil end
  local found = redis.call('HGET', run .. 'state', slot)
  if not found then return nil end
  local last, result = string.match(found, '^(%d+) (.*)$')
  if last == number then return result end
end

local function keep_result(result)
  set(slot, number .. ' ' .. result)
end
"""
