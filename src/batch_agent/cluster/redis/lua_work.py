"""Lua scripts for leases and facts in the Redis server. Each is atomic."""

from typing import Final

from .lua_common import COMMON, IDEMPOTENCE, OUTAGE_GRACE, LuaScript

# ARGV: retry failed, a creation mark, then key and job of each. Returns the run's creation mark, which is that of the
# first submitter, and key and completion of those that need no work.
SUBMIT: Final = LuaScript.of(
    COMMON,
    """
if redis.call('EXISTS', run .. 'work') == 0 then
  redis.call('XGROUP', 'CREATE', run .. 'work', GROUP, '0', 'MKSTREAM')
  redis.call('HSET', run .. 'meta', 'born', ARGV[2])
end
local retry = ARGV[1] == '1'
local keys, ended, submitted, again = {}, {redis.call('HGET', run .. 'meta', 'born')}, {}, {}
for index = 3, #ARGV, 2 do keys[#keys + 1] = ARGV[index] end
local agents = redis.call('HMGET', run .. 'agents', unpack(keys))
local endings = redis.call('HMGET', run .. 'endings', unpack(keys))
local known = {}
for index, key in ipairs(keys) do
  local failed, ending
  if endings[index] then failed, ending = string.match(endings[index], '^%d+ (%d) (.*)$') end
  if ending and not (retry and failed == '1') then
    ended[#ended + 1] = key
    ended[#ended + 1] = ending
  elseif not agents[index] and not known[key] then
    known[key] = true
    local entry
    if ending then
      again[#again + 1] = key
      entry = redis.call('XADD', run .. 'work', '*', key, ARGV[2 * index + 2], 'again', '')
    else
      entry = redis.call('XADD', run .. 'work', '*', key, ARGV[2 * index + 2])
    end
    submitted[#submitted + 1] = key
    submitted[#submitted + 1] = '0 0 ' .. entry .. ' '
  end
end
if #submitted > 0 then
  redis.call('HSET', run .. 'agents', unpack(submitted))
  if #again > 0 then redis.call('HDEL', run .. 'endings', unpack(again)) end
  wake_up()
end
return ended
""",
)

# ARGV: once (3), worker, max jobs, ttl in milliseconds, cursor for expired leases. Returns the next cursor; the last
# wake-up entry, if there is nothing to lease (false: no work was ever submitted); key, job, token, attempts and whether
# there may be facts, of each.
LEASE: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
    """
local worker, max_jobs, ttl, cursor = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local time = micros()
local now = math.floor(time / 1000)
local leases = {}

local function add(key, job, one, has_facts)
  for _, value in ipairs({key, job, one.token, one.attempts, has_facts}) do leases[#leases + 1] = value end
end

local previous = previous_result()
if previous then
  for entry in string.gmatch(previous, '%S+') do
    local found = redis.call('XRANGE', run .. 'work', entry, entry)[1]
    local one = found and owner(redis.call('HGET', run .. 'agents', found[2][1]))
    if one and one.worker == worker then add(found[2][1], found[2][2], one, 1) end
  end
  return {cursor, '', leases}
end

local meta = read_meta(now)
local idle = integer(meta.spares_expired and 2 * MAX_LEASE or MAX_LEASE)
local taken = {}

local function take_over(from, count)
  local found = redis.pcall('XAUTOCLAIM', run .. 'work', GROUP, worker, idle, from, 'COUNT', count)
  if found.err then return nil, found end
  for _, entry in ipairs(found[2]) do taken[#taken + 1] = entry end
  return found[1]
end

local following, failure = take_over(cursor, max_jobs)
if failure then
  if string.find(failure.err, 'NOGROUP', 1, true) == 1 then return {'0-0', false, leases} end
  return failure
end
cursor = following
local new = {}
if #taken < max_jobs then
  local count = max_jobs - #taken
  local found = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count, 'STREAMS', run .. 'work', '>')
  if found then new = found[1][2] end
end
if #taken + #new < max_jobs then
  cursor = '0-0'
  repeat cursor = take_over(cursor, max_jobs - #taken - #new) until cursor == '0-0' or #taken + #new == max_jobs
end
local old = #taken
for _, entry in ipairs(new) do taken[#taken + 1] = entry end

if #taken > 0 then
  local keys, entries, records = {}, {}, {}
  for index = 1, old do keys[index] = taken[index][2][1] end
  local owners = old > 0 and redis.call('HMGET', run .. 'agents', unpack(keys)) or {}
  meta.token = math.max(meta.token, time)
  for index, entry in ipairs(taken) do
    local key, job, again = entry[2][1], entry[2][2], entry[2][3]
    local one = owner(owners[index]) or {attempts = 0}
    meta.token = meta.token + 1
    one.token = integer(meta.token)
    one.attempts = one.attempts + 1
    add(key, job, one, (again or index <= old) and 1 or 0)
    entries[index] = entry[1]
    records[#records + 1] = key
    records[#records + 1] = one.token .. ' ' .. one.attempts .. ' ' .. entry[1] .. ' ' .. worker
  end
  redis.call('HSET', run .. 'agents', unpack(records))
  claim(worker, entries, MAX_LEASE - ttl)
  keep_result(table.concat(entries, ' '))
end
record_renewal(meta, now, worker, ttl)
local bell = ''
if #taken == 0 then
  local last = redis.call('XREVRANGE', run .. 'bell', '+', '-', 'COUNT', 1)[1]
  bell = last and last[1] or '0-0'
end
return {cursor, bell, leases}
""",
)

# ARGV: worker, ttl in milliseconds, then key and token of each. Returns the keys that other workers hold or have ended.
RENEW: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    """
local worker, ttl = ARGV[1], tonumber(ARGV[2])
local now = math.floor(micros() / 1000)
local meta = read_meta(now)
local mine, others = held(worker, 3)
claim(worker, mine, MAX_LEASE - ttl)
record_renewal(meta, now, worker, ttl)
local lost = {}
for _, other in ipairs(others) do
  local key, token, one = unpack(other)
  local ending = not one and redis.call('HGET', run .. 'endings', key)
  if not ending or string.match(ending, '^%d+') ~= token then lost[#lost + 1] = key end
end
return lost
""",
)

# ARGV: worker, then key and token of each.
RELEASE: Final = LuaScript.of(
    COMMON,
    """
local mine = held(ARGV[1], 2)
if #mine > 0 then free(mine) end
""",
)

# ARGV: worker.
LEAVE: Final = LuaScript.of(
    COMMON,
    """
local worker = ARGV[1]
redis.call('DEL', run .. 'alive:' .. worker)
if redis.call('EXISTS', run .. 'work') == 0 then return end
while true do
  local entries = {}
  for index, pending in ipairs(redis.call('XPENDING', run .. 'work', GROUP, '-', '+', 1000, worker)) do
    entries[index] = pending[1]
  end
  if #entries == 0 then break end
  free(entries)
end
redis.call('XGROUP', 'DELCONSUMER', run .. 'work', GROUP, worker)
""",
)

# ARGV: worker, number, remaining parts of the batch, usage, number of agents with facts; of each: key, agent,
# token, whether its facts are replaced, number of facts, facts; then key, token, failed, completion of each that ends.
# Returns the refused keys. A gap in the numbers shows that the server has lost writes: no lease that this worker has
# had by then is valid any more, because facts may be missing.
WRITE: Final = LuaScript.of(
    COMMON,
    """
local worker, number, rest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = {0, 0, 0}
local refused = {}
local found = redis.call('HGET', run .. 'workers', worker)
if found then
  local numbers, keys = string.match(found, '^(.-)\\n(.*)$')
  local index = 0
  for digits in string.gmatch(numbers, '%d+') do
    index = index + 1
    last[index] = tonumber(digits)
  end
  if keys ~= '' and number == last[1] then refused = cjson.decode(keys) end
end
if number < last[1] or (number == last[1] and rest >= last[2]) then return refused end
local follows = (number == last[1] and rest == last[2] - 1) or (number == last[1] + 1 and last[2] == 0)
local floor = last[3]
if not follows then floor = tonumber(redis.call('HGET', run .. 'meta', 'token')) or 0 end

local histories, ends, agents = {}, {}, {}
local position = 6
for count = 1, tonumber(ARGV[5]) do
  histories[count] = position
  agents[#agents + 1] = ARGV[position + 1]
  position = position + 5 + tonumber(ARGV[position + 4])
end
for first = position, #ARGV, 4 do
  ends[#ends + 1] = first
  agents[#agents + 1] = ARGV[first]
end
local records = redis.call('HMGET', run .. 'agents', unpack(agents))
local function mine(count, token)
  local one = owner(records[count])
  if one and one.token == token and one.worker == worker and tonumber(token) > floor then return one end
end

for count, first in ipairs(histories) do
  local key = ARGV[first]
  if mine(count, ARGV[first + 2]) then
    local facts = {}
    for fact = first + 5, first + 4 + tonumber(ARGV[first + 4]) do facts[#facts + 1] = ARGV[fact] end
    if ARGV[first + 3] == '1' then redis.call('DEL', run .. 'facts:' .. key) end
    many('RPUSH', run .. 'facts:' .. key, facts)
  else
    refused[#refused + 1] = key
  end
end

local keys, entries, endings, completions = {}, {}, {}, {}
for count, first in ipairs(ends) do
  local key, token, failed, ending = unpack(ARGV, first, first + 3)
  local one = mine(#histories + count, token)
  if one then
    keys[#keys + 1] = key
    entries[#entries + 1] = one.entry
    endings[#endings + 1] = key
    endings[#endings + 1] = token .. ' ' .. failed .. ' ' .. ending
    completions[#completions + 1] = key
    completions[#completions + 1] = ending
  else
    refused[#refused + 1] = key
  end
end
if #keys > 0 then
  redis.call('XACK', run .. 'work', GROUP, unpack(entries))
  redis.call('XDEL', run .. 'work', unpack(entries))
  redis.call('HDEL', run .. 'agents', unpack(keys))
  redis.call('HSET', run .. 'endings', unpack(endings))
  redis.call('XADD', run .. 'ended', '*', unpack(completions))
end

local record = {integer(number), integer(rest), integer(floor)}
local used = {}
for digits in string.gmatch(ARGV[4], '%d+') do used[#used + 1] = tonumber(digits) end
for count = 1, math.max(#used, #last - 3) do
  record[count + 3] = integer((last[count + 3] or 0) + (used[count] or 0))
end
local listed = #refused > 0 and cjson.encode(refused) or ''
redis.call('HSET', run .. 'workers', worker, table.concat(record, ' ') .. '\\n' .. listed)
return refused
""",
)
