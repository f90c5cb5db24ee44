"""What scripts that run in the Redis server have in common. The beginning of the run's keys is their only KEYS.

Keys: `work` is the stream of jobs, with one group of workers. `agents` has, for each that has not ended, "token times
entry worker". `endings` has "token failed json" of the others, and `ended` tells of them. `facts:KEY` are lists.
`workers` has "number rest floor input cached output" of each worker's last batch, and which keys were refused in it.
`alive:WORKER` runs out when its worker is not heard of. `meta` has the last token, when somebody was last heard of, how
long that one's leases last, and until when leases that have run out are left alone. `bell` wakes up those who wait for
work. `once` has what came of calls that may have to be repeated.
"""

from hashlib import sha1
from typing import Final

from ...core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LuaScript:
    text: str
    sha: str

    @classmethod
    def of(cls, *parts: str) -> "LuaScript":
        text = "\n".join(parts)
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


GROUP: Final = "workers"
NOBODY: Final = "nobody"
"""Has the agents that were given back."""

FAR: Final = 30 * 24 * 3600.0
"""Seconds that are more than any lease lasts."""

# An entry's idle time says how far beyond its lease it is: it is FAR when the lease runs out, and twice as FAR when it
# was given back. So leases of different lengths lie in one group.
COMMON: Final = f"""
local run = KEYS[1]
local FAR = {FAR * 1_000:.0f}
local GROUP, NOBODY = '{GROUP}', '{NOBODY}'

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function whole(number)
  return string.format('%.0f', number)
end

local function owner(record)
  if not record then return nil end
  local token, times, entry, worker = string.match(record, '^(%d+) (%d+) (%S+) (.*)$')
  return {{token = token, times = tonumber(times), entry = entry, worker = worker}}
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
    for place = first, math.min(first + 999, #entries) do call[#call + 1] = entries[place] end
    call[#call + 1] = 'IDLE'
    call[#call + 1] = whole(idle)
    call[#call + 1] = 'JUSTID'
    redis.call(unpack(call))
  end
end

local function ring()
  redis.call('XADD', run .. 'bell', 'MAXLEN', 1, '*', 'ring', '')
end

local function held(worker, first)
  local keys, mine, others = {{}}, {{}}, {{}}
  for place = first, #ARGV, 2 do keys[#keys + 1] = ARGV[place] end
  if #keys == 0 then return mine, others end
  local records = redis.call('HMGET', run .. 'agents', unpack(keys))
  for place, key in ipairs(keys) do
    local one = owner(records[place])
    local token = ARGV[first + 2 * place - 1]
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
  for place, entry in ipairs(entries) do
    local found = redis.call('XRANGE', run .. 'work', entry, entry)[1]
    keys[place] = found and found[2][1] or ''
  end
  for place, record in ipairs(redis.call('HMGET', run .. 'agents', unpack(keys))) do
    local one = owner(record)
    if one and one.entry == entries[place] then
      records[#records + 1] = keys[place]
      records[#records + 1] = one.token .. ' ' .. math.max(0, one.times - 1) .. ' ' .. one.entry .. ' ' .. one.worker
    end
  end
  if #records > 0 then redis.call('HSET', run .. 'agents', unpack(records)) end
  claim(NOBODY, entries, 2 * FAR)
  ring()
end
"""

# Whoever comes first after a long silence does not know whether the workers are gone or the server was: they get the
# time of a lease to be heard of.
SILENCE: Final = """
local function look(now)
  local found = redis.call('HMGET', run .. 'meta', 'token', 'seen', 'lasts', 'grace')
  local meta = {token = tonumber(found[1]) or 0, grace = tonumber(found[4]) or 0}
  local seen, lasts = tonumber(found[2]), tonumber(found[3])
  if seen and now - seen > 0.75 * lasts then meta.grace = now + lasts end
  meta.spares = now < meta.grace
  return meta
end

local function seen(meta, now, worker, lasts)
  redis.call('SET', run .. 'alive:' .. worker, '', 'PX', lasts)
  redis.call('HSET', run .. 'meta', 'token', whole(meta.token), 'seen', whole(now), 'lasts', lasts,
    'grace', whole(meta.grace))
end
"""

# A repeated call finds what came of it under its place, if its number is there; a place has one call at a time.
ONCE: Final = """
local place, number, is_repeated = ARGV[1], ARGV[2], ARGV[3] == '1'

local function before()
  if not is_repeated then return nil end
  local found = redis.call('HGET', run .. 'once', place)
  if not found then return nil end
  local last, answer = string.match(found, '^(%d+) (.*)$')
  if last == number then return answer end
end

local function keep(answer)
  redis.call('HSET', run .. 'once', place, number .. ' ' .. answer)
end
"""
