"""Lua scripts for leases and facts in the Redis server. Each is atomic."""

from typing import Final

from .lua_common import COMMON, IDEMPOTENCE, OLD_LAYOUT, OUTAGE_GRACE, LuaScript

_REFUSE_OLD_LAYOUT = f"""
local function old_layout()
  if redis.call('EXISTS', run .. 'work') == 1 then return redis.error_reply('{OLD_LAYOUT} of an earlier version') end
end
"""

# ARGV: retry failed, a creation mark, then key and job of each. Returns the run's creation mark, which is that of the
# first submitter, and key and completion of those that need no work.
SUBMIT: Final = LuaScript.of(
    COMMON,
    _REFUSE_OLD_LAYOUT,
    """
local fields = agent_fields(3)
local jobs = #fields
fields[jobs + 1] = 'born'
fields[jobs + 2] = 'pending'
local found = read(fields)
local born, pending = found[jobs + 1], tonumber(found[jobs + 2]) or 0
if not born then
  local refusal = old_layout()
  if refusal then return refusal end
  redis.call('XGROUP', 'CREATE', run .. 'work', GROUP, '0', 'MKSTREAM')
  born = ARGV[2]
  set('born', born)
end
local retry = ARGV[1] == '1'
local ended, known, submitted = {born}, {}, 0
for index = 1, jobs do
  local key, job, one = ARGV[2 * index + 1], ARGV[2 * index + 2], found[index]
  local failed, ending
  if one then failed, ending = string.match(one, '^! %d+ (%d) (.*)$') end
  if ending and not (retry and failed == '1') then
    ended[#ended + 1] = key
    ended[#ended + 1] = ending
  elseif (ending or not one) and not known[key] then
    known[key] = true
    local call = {'XADD', run .. 'work', 'NOMKSTREAM', '*', key, job}
    if ending then
      call[#call + 1] = 'again'
      call[#call + 1] = ''
    end
    local entry = redis.call(unpack(call))
    if not entry then return redis.error_reply('NOGROUP the work is gone') end
    set(fields[index], '0 0 ' .. entry .. ' ')
    submitted = submitted + 1
  end
end
if submitted > 0 then
  set('pending', integer(pending + submitted))
  wake_up()
end
save()
return ended
""",
)

# ARGV: once (3), worker, max jobs, divisor of the pending agents (at most that part of them is leased), ttl in
# milliseconds, cursor for expired leases. Returns the next cursor; the last wake-up entry, if there is nothing to lease
# (false: no work was ever submitted); key, job, token, attempts and whether there may be facts, of each.
LEASE: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
    _REFUSE_OLD_LAYOUT,
    """
local worker, max_jobs, divisor, ttl, cursor = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
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
    local one = found and owner(redis.call('HGET', run .. 'state', 'agent:' .. found[2][1]))
    if one and one.worker == worker then add(found[2][1], found[2][2], one, 1) end
  end
  return {cursor, '', leases}
end

local meta, found = read_with_meta(now, {'born', 'pending'})
if not found[1] then return old_layout() or {'0-0', false, leases} end
max_jobs = math.min(max_jobs, math.max(1, math.ceil((tonumber(found[2]) or 0) / divisor)))
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
local has_seen_all = ARGV[8] == '0-0' and cursor == '0-0'
if #taken + #new < max_jobs and not has_seen_all then
  cursor = '0-0'
  repeat cursor = take_over(cursor, max_jobs - #taken - #new) until cursor == '0-0' or #taken + #new == max_jobs
end
local old = #taken
for _, entry in ipairs(new) do taken[#taken + 1] = entry end

if #taken > 0 then
  local fields, entries = {}, {}
  for index = 1, old do fields[index] = 'agent:' .. taken[index][2][1] end
  local owners = old > 0 and read(fields) or {}
  meta.token = math.max(meta.token, time)
  for index, entry in ipairs(taken) do
    local key, job, again = entry[2][1], entry[2][2], entry[2][3]
    local one = owner(owners[index]) or {attempts = 0}
    meta.token = meta.token + 1
    one.token, one.attempts, one.entry, one.worker = integer(meta.token), one.attempts + 1, entry[1], worker
    add(key, job, one, (again or index <= old) and 1 or 0)
    entries[index] = entry[1]
    set('agent:' .. key, record(one))
  end
  claim(worker, entries, MAX_LEASE - ttl)
  keep_result(table.concat(entries, ' '))
end
record_renewal(meta, now, worker, ttl)
save()
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
local meta, records = read_with_meta(now, agent_fields(3))
local mine, others = held(worker, 3, records)
claim(worker, mine, MAX_LEASE - ttl)
record_renewal(meta, now, worker, ttl)
save()
local lost = {}
for _, other in ipairs(others) do
  local ended_by = other.record and string.match(other.record, '^! (%d+)')
  if ended_by ~= other.token then lost[#lost + 1] = other.key end
end
return lost
""",
)

# ARGV: worker, then key and token of each.
RELEASE: Final = LuaScript.of(
    COMMON,
    """
local mine = held(ARGV[1], 2, read(agent_fields(2)))
if #mine > 0 then free(mine) end
""",
)

# ARGV: worker.
LEAVE: Final = LuaScript.of(
    COMMON,
    """
local worker = ARGV[1]
redis.call('HDEL', run .. 'state', 'alive:' .. worker)
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

# ARGV: worker, number, remaining parts of the batch, usage, number of agents with facts; of each: key, agent, token,
# whether its facts are replaced, facts; then key, token, failed, completion of each that ends. Returns the refused keys.
# A gap in the numbers shows that the server has lost writes: no lease that this worker has had by then is valid any
# more, because facts may be missing.
WRITE: Final = LuaScript.of(
    COMMON,
    """
local worker, number, rest, histories = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local first_end = 6 + 5 * histories
local fields = {}
for first = 6, first_end - 1, 5 do fields[#fields + 1] = 'agent:' .. ARGV[first + 1] end
for first = first_end, #ARGV, 4 do fields[#fields + 1] = 'agent:' .. ARGV[first] end
local agents = #fields
for first = 6, first_end - 1, 5 do fields[#fields + 1] = 'entries:' .. ARGV[first] end
local own = #fields
for _, field in ipairs({'worker:' .. worker, 'spent', 'pending'}) do fields[#fields + 1] = field end
local found = read(fields)

local last = {0, 0, 0}
local refused = {}
if found[own + 1] then
  local numbers, keys = string.match(found[own + 1], '^(.-)\\n(.*)$')
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
if not follows then floor = tonumber(redis.call('HGET', run .. 'state', 'token')) or 0 end

local function mine(index, token)
  local one = owner(found[index])
  if one and one.token == token and one.worker == worker and tonumber(token) > floor then return one end
end

local counts = {}
for index = 1, histories do
  local first = 1 + 5 * index
  local key = ARGV[first]
  if mine(index, ARGV[first + 2]) then
    local count = counts[key] or tonumber(found[agents + index]) or 0
    if ARGV[first + 3] == '1' then
      for entry = 1, count do redis.call('HDEL', run .. 'state', 'facts:' .. key .. ' ' .. entry) end
      count = 0
    end
    if ARGV[first + 4] ~= '' then
      count = count + 1
      set('facts:' .. key .. ' ' .. count, ARGV[first + 4])
    end
    counts[key] = count
    set('entries:' .. key, count)
  else
    refused[#refused + 1] = key
  end
end

local entries, completions = {}, {}
for first = first_end, #ARGV, 4 do
  local key, token, failed, ending = unpack(ARGV, first, first + 3)
  local one = mine(histories + (first - first_end) / 4 + 1, token)
  if one then
    entries[#entries + 1] = one.entry
    completions[#completions + 1] = key
    completions[#completions + 1] = ending
    set('agent:' .. key, '! ' .. token .. ' ' .. failed .. ' ' .. ending)
  else
    refused[#refused + 1] = key
  end
end
if #entries > 0 then
  redis.call('XACK', run .. 'work', GROUP, unpack(entries))
  redis.call('XDEL', run .. 'work', unpack(entries))
  redis.call('XADD', run .. 'ended', '*', unpack(completions))
  set('pending', integer((tonumber(found[own + 3]) or 0) - #entries))
end

local spent, used = {}, {}
for digits in string.gmatch(found[own + 2] or '', '%d+') do spent[#spent + 1] = tonumber(digits) end
for digits in string.gmatch(ARGV[4], '%d+') do used[#used + 1] = tonumber(digits) end
for count = 1, math.max(#used, #spent) do spent[count] = integer((spent[count] or 0) + (used[count] or 0)) end
set('spent', table.concat(spent, ' '))
local listed = #refused > 0 and cjson.encode(refused) or ''
set('worker:' .. worker, integer(number) .. ' ' .. integer(rest) .. ' ' .. integer(floor) .. '\\n' .. listed)
save()
return refused
""",
)

# ARGV: keys. Returns a list for each, with its entries.
FACTS: Final = LuaScript.of(
    COMMON,
    """
local fields, entries, lists = {}, {}, {}
for index, key in ipairs(ARGV) do fields[index] = 'entries:' .. key end
local counts = read(fields)
for index, key in ipairs(ARGV) do
  for entry = 1, tonumber(counts[index]) or 0 do entries[#entries + 1] = 'facts:' .. key .. ' ' .. entry end
end
local found, position = {}, 0
for first = 1, #entries, 1000 do
  local part = {unpack(entries, first, math.min(first + 999, #entries))}
  for _, entry in ipairs(read(part)) do found[#found + 1] = entry end
end
for index = 1, #ARGV do
  lists[index] = {}
  for entry = 1, tonumber(counts[index]) or 0 do
    position = position + 1
    lists[index][entry] = found[position]
  end
end
return lists
""",
)
