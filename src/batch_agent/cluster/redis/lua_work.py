"""Work and facts in the Redis server, each at one stroke: who has which agent, and what they may write."""

from typing import Final

from .lua_common import COMMON, ONCE, SILENCE, LuaScript

# ARGV: retry failed ones?, a birth mark, then key and job of each. Gives the run's birth mark, which is that of the
# first who posted; key and ending of those that need not be done.
POST: Final = LuaScript.of(
    COMMON,
    """
if redis.call('EXISTS', run .. 'work') == 0 then
  redis.call('XGROUP', 'CREATE', run .. 'work', GROUP, '0', 'MKSTREAM')
  redis.call('HSET', run .. 'meta', 'born', ARGV[2])
end
local retry = ARGV[1] == '1'
local keys, ended, posted, again = {}, {redis.call('HGET', run .. 'meta', 'born')}, {}, {}
for place = 3, #ARGV, 2 do keys[#keys + 1] = ARGV[place] end
local agents = redis.call('HMGET', run .. 'agents', unpack(keys))
local endings = redis.call('HMGET', run .. 'endings', unpack(keys))
local known = {}
for place, key in ipairs(keys) do
  local failed, ending
  if endings[place] then failed, ending = string.match(endings[place], '^%d+ (%d) (.*)$') end
  if ending and not (retry and failed == '1') then
    ended[#ended + 1] = key
    ended[#ended + 1] = ending
  elseif not agents[place] and not known[key] then
    known[key] = true
    local entry
    if ending then
      again[#again + 1] = key
      entry = redis.call('XADD', run .. 'work', '*', key, ARGV[2 * place + 2], 'again', '')
    else
      entry = redis.call('XADD', run .. 'work', '*', key, ARGV[2 * place + 2])
    end
    posted[#posted + 1] = key
    posted[#posted + 1] = '0 0 ' .. entry .. ' '
  end
end
if #posted > 0 then
  redis.call('HSET', run .. 'agents', unpack(posted))
  if #again > 0 then redis.call('HDEL', run .. 'endings', unpack(again)) end
  ring()
end
return ended
""",
)

# ARGV: once (3), worker, most, milliseconds, where to look for leases that have run out. Gives where to look next; the
# last bell, if there is nothing (false: no work was ever posted); key, job, token, times and whether there may be facts
# of each.
LEASE: Final = LuaScript.of(
    COMMON,
    SILENCE,
    ONCE,
    """
local worker, most, lasts, cursor = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local time = micros()
local now = math.floor(time / 1000)
local leases = {}

local function add(key, job, one, has_facts)
  for _, value in ipairs({key, job, one.token, one.times, has_facts}) do leases[#leases + 1] = value end
end

local answer = before()
if answer then
  for entry in string.gmatch(answer, '%S+') do
    local found = redis.call('XRANGE', run .. 'work', entry, entry)[1]
    local one = found and owner(redis.call('HGET', run .. 'agents', found[2][1]))
    if one and one.worker == worker then add(found[2][1], found[2][2], one, 1) end
  end
  return {cursor, '', leases}
end

local meta = look(now)
local idle = whole(meta.spares and 2 * FAR or FAR)
local taken = {}

local function take_over(from, count)
  local found = redis.pcall('XAUTOCLAIM', run .. 'work', GROUP, worker, idle, from, 'COUNT', count)
  if found.err then return nil, found end
  for _, entry in ipairs(found[2]) do taken[#taken + 1] = entry end
  return found[1]
end

local following, failure = take_over(cursor, most)
if failure then
  if string.find(failure.err, 'NOGROUP', 1, true) == 1 then return {'0-0', false, leases} end
  return failure
end
cursor = following
local fresh = {}
if #taken < most then
  local found = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', most - #taken, 'STREAMS', run .. 'work', '>')
  if found then fresh = found[1][2] end
end
if #taken + #fresh < most then
  cursor = '0-0'
  repeat cursor = take_over(cursor, most - #taken - #fresh) until cursor == '0-0' or #taken + #fresh == most
end
local old = #taken
for _, entry in ipairs(fresh) do taken[#taken + 1] = entry end

if #taken > 0 then
  local keys, entries, records = {}, {}, {}
  for place = 1, old do keys[place] = taken[place][2][1] end
  local owners = old > 0 and redis.call('HMGET', run .. 'agents', unpack(keys)) or {}
  meta.token = math.max(meta.token, time)
  for place, entry in ipairs(taken) do
    local key, job, again = entry[2][1], entry[2][2], entry[2][3]
    local one = owner(owners[place]) or {times = 0}
    meta.token = meta.token + 1
    one.token = whole(meta.token)
    one.times = one.times + 1
    add(key, job, one, (again or place <= old) and 1 or 0)
    entries[place] = entry[1]
    records[#records + 1] = key
    records[#records + 1] = one.token .. ' ' .. one.times .. ' ' .. entry[1] .. ' ' .. worker
  end
  redis.call('HSET', run .. 'agents', unpack(records))
  claim(worker, entries, FAR - lasts)
  keep(table.concat(entries, ' '))
end
seen(meta, now, worker, lasts)
local bell = ''
if #taken == 0 then
  local last = redis.call('XREVRANGE', run .. 'bell', '+', '-', 'COUNT', 1)[1]
  bell = last and last[1] or '0-0'
end
return {cursor, bell, leases}
""",
)

# ARGV: worker, milliseconds, then key and token of each. Gives the keys that others have, or have ended.
RENEW: Final = LuaScript.of(
    COMMON,
    SILENCE,
    """
local worker, lasts = ARGV[1], tonumber(ARGV[2])
local now = math.floor(micros() / 1000)
local meta = look(now)
local mine, others = held(worker, 3)
claim(worker, mine, FAR - lasts)
seen(meta, now, worker, lasts)
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
GIVE_BACK: Final = LuaScript.of(
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
  for place, pending in ipairs(redis.call('XPENDING', run .. 'work', GROUP, '-', '+', 1000, worker)) do
    entries[place] = pending[1]
  end
  if #entries == 0 then break end
  free(entries)
end
redis.call('XGROUP', 'DELCONSUMER', run .. 'work', GROUP, worker)
""",
)

# ARGV: worker, number, how many pieces of the batch follow, tokens (3), how many stories; key, agent, token, whether it
# begins anew, how many facts, and these of each; then key, token, failed?, ending of each that ends. Gives the refused.
# A number that does not follow the last one shows that the server has lost something: no lease that this worker has had
# by then is good any more, because its stories may have holes.
WRITE: Final = LuaScript.of(
    COMMON,
    """
local worker, number, rest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = {0, 0, 0, 0, 0, 0}
local refused = {}
local found = redis.call('HGET', run .. 'workers', worker)
if found then
  local numbers, keys = string.match(found, '^(.-)\\n(.*)$')
  local place = 0
  for digits in string.gmatch(numbers, '%d+') do
    place = place + 1
    last[place] = tonumber(digits)
  end
  if keys ~= '' and number == last[1] then refused = cjson.decode(keys) end
end
if number < last[1] or (number == last[1] and rest >= last[2]) then return refused end
local follows = (number == last[1] and rest == last[2] - 1) or (number == last[1] + 1 and last[2] == 0)
local floor = last[3]
if not follows then floor = tonumber(redis.call('HGET', run .. 'meta', 'token')) or 0 end

local stories, ends, agents = {}, {}, {}
local place = 8
for count = 1, tonumber(ARGV[7]) do
  stories[count] = place
  agents[#agents + 1] = ARGV[place + 1]
  place = place + 5 + tonumber(ARGV[place + 4])
end
for first = place, #ARGV, 4 do
  ends[#ends + 1] = first
  agents[#agents + 1] = ARGV[first]
end
local records = redis.call('HMGET', run .. 'agents', unpack(agents))
local function mine(count, token)
  local one = owner(records[count])
  if one and one.token == token and one.worker == worker and tonumber(token) > floor then return one end
end

for count, first in ipairs(stories) do
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

local keys, entries, endings, told = {}, {}, {}, {}
for count, first in ipairs(ends) do
  local key, token, failed, ending = unpack(ARGV, first, first + 3)
  local one = mine(#stories + count, token)
  if one then
    keys[#keys + 1] = key
    entries[#entries + 1] = one.entry
    endings[#endings + 1] = key
    endings[#endings + 1] = token .. ' ' .. failed .. ' ' .. ending
    told[#told + 1] = key
    told[#told + 1] = ending
  else
    refused[#refused + 1] = key
  end
end
if #keys > 0 then
  redis.call('XACK', run .. 'work', GROUP, unpack(entries))
  redis.call('XDEL', run .. 'work', unpack(entries))
  redis.call('HDEL', run .. 'agents', unpack(keys))
  redis.call('HSET', run .. 'endings', unpack(endings))
  redis.call('XADD', run .. 'ended', '*', unpack(told))
end

local record = {}
for count, value in ipairs({number, rest, floor, last[4] + ARGV[4], last[5] + ARGV[5], last[6] + ARGV[6]}) do
  record[count] = whole(value)
end
local listed = #refused > 0 and cjson.encode(refused) or ''
redis.call('HSET', run .. 'workers', worker, table.concat(record, ' ') .. '\\n' .. listed)
return refused
""",
)
