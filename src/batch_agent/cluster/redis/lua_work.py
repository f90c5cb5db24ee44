"""Lua scripts for leases and facts in the Redis server. Each is atomic."""

from typing import Final

from .lua_common import COMMON, IDEMPOTENCE, LOST, OLD_LAYOUT, OUTAGE_GRACE, LuaScript

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
  born = ARGV[2]
  set('born', born)
end
local retry = ARGV[1] == '1'
local ended, completions, known, queued = {}, {}, {}, {}
for index = 1, jobs do
  local key, one = ARGV[2 * index + 1], found[index]
  local failed = one and string.match(one, '^! %d+ (%d)$')
  if failed and not (retry and failed == '1') then
    ended[#ended + 1] = key
    completions[#completions + 1] = 'data:' .. key
  elseif (failed or not one) and not known[key] then
    known[key] = true
    queued[#queued + 1] = key
    set('agent:' .. key, '0 0 ')
    set('data:' .. key, ARGV[2 * index + 2])
  end
end
if #queued > 0 then
  set('pending', integer(pending + #queued))
  save()
  redis.call('RPUSH', run .. 'queue', unpack(queued))
  wake_up()
end
local result = {born}
for index, completion in ipairs(#ended > 0 and read(completions) or {}) do
  result[#result + 1] = ended[index]
  result[#result + 1] = completion
end
return result
""",
)

# ARGV: once (3), worker, max jobs, divisor of the pending agents (at most that part of them is leased), ttl in
# milliseconds. Returns the last wake-up entry, if there is nothing to lease (false: no work was ever submitted); of
# each, as one string, token, attempts and number of its entries, and in the next line its job.
LEASE: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
    _REFUSE_OLD_LAYOUT,
    f"""
local worker, max_jobs, divisor, ttl = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local time = micros()
local now = math.floor(time / 1000)
local leases = {{}}

local function read_agents(keys)
  local fields = {{}}
  for _, key in ipairs(keys) do
    for _, kind in ipairs({{'agent:', 'data:', 'entries:'}}) do fields[#fields + 1] = kind .. key end
  end
  return read(fields)
end

local function add(one, found, index)
  local entries = tonumber(found[3 * index]) or 0
  leases[#leases + 1] = one.token .. ' ' .. one.attempts .. ' ' .. entries .. '\\n' .. found[3 * index - 1]
end

local previous = previous_result()
if previous then
  local keys = cjson.decode(previous)
  local found = read_agents(keys)
  for index, key in ipairs(keys) do
    local one = owner(found[3 * index - 2])
    if one and one.worker == worker then add(one, found, index) end
  end
  return {{'', leases}}
end

local meta, run_fields = read_with_meta(now, {{'born', 'pending'}})
if not run_fields[1] then return old_layout() or {{false, leases}} end
local pending = tonumber(run_fields[2]) or 0
max_jobs = math.min(max_jobs, math.max(1, math.ceil(pending / divisor)))
local keys = {{}}
if not meta.spares_expired then
  keys = redis.call('ZRANGEBYSCORE', run .. 'leases', '-inf', integer(now), 'LIMIT', 0, max_jobs)
end
if #keys < max_jobs then
  for _, key in ipairs(redis.call('LPOP', run .. 'queue', max_jobs - #keys) or {{}}) do keys[#keys + 1] = key end
end
local bell = ''
if #keys > 0 then
  local found = read_agents(keys)
  meta.token = math.max(meta.token, time)
  for index, key in ipairs(keys) do
    local one = owner(found[3 * index - 2])
    if not one then return redis.error_reply('{LOST} the record of an agent is gone') end
    meta.token = meta.token + 1
    one.token, one.attempts, one.worker = integer(meta.token), one.attempts + 1, worker
    add(one, found, index)
    set('agent:' .. key, record(one))
  end
  set_expiry(keys, now + ttl)
  keep_result(cjson.encode(keys))
else
  if pending > 0 and redis.call('ZCARD', run .. 'leases') == 0 then
    return redis.error_reply('{LOST} the queue is gone')
  end
  local last = redis.call('XREVRANGE', run .. 'bell', '+', '-', 'COUNT', 1)[1]
  bell = last and last[1] or '0-0'
end
record_renewal(meta, now, worker, ttl)
save()
return {{bell, leases}}
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
local keys, lost = {}, {}
for index, each in ipairs(mine) do keys[index] = each.key end
set_expiry(keys, now + ttl)
record_renewal(meta, now, worker, ttl)
save()
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
free((held(ARGV[1], 2, read(agent_fields(2)))))
""",
)

# ARGV: worker.
LEAVE: Final = LuaScript.of(
    COMMON,
    """
local worker = ARGV[1]
redis.call('HDEL', run .. 'state', 'alive:' .. worker)
local keys = redis.call('ZRANGE', run .. 'leases', 0, -1)
for first = 1, #keys, 1000 do
  local fields, mine = {}, {}
  for index = first, math.min(first + 999, #keys) do fields[#fields + 1] = 'agent:' .. keys[index] end
  for index, found in ipairs(read(fields)) do
    local one = owner(found)
    if one and one.worker == worker then mine[#mine + 1] = {key = keys[first + index - 1], one = one} end
  end
  free(mine)
end
""",
)

# ARGV: worker, number, remaining parts of the batch, usage, number of agents with facts; of each: key, agent, token,
# whether its facts are replaced, facts; then key, token, failed, completion of each that ends. Returns the refused
# keys. A gap in the numbers shows that the server has lost writes: no lease that this worker has had by then is valid
# any more, because facts may be missing.
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

local keys, completions = {}, {}
for first = first_end, #ARGV, 4 do
  local key, token, failed, ending = unpack(ARGV, first, first + 3)
  if mine(histories + (first - first_end) / 4 + 1, token) then
    keys[#keys + 1] = key
    completions[#completions + 1] = ending
    set('agent:' .. key, '! ' .. token .. ' ' .. failed)
    set('data:' .. key, ending)
  else
    refused[#refused + 1] = key
  end
end
if #keys > 0 then
  redis.call('ZREM', run .. 'leases', unpack(keys))
  redis.call('XADD', run .. 'ended', '*', 'lines', table.concat(completions, '\\n'))
  set('pending', integer((tonumber(found[own + 3]) or 0) - #keys))
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

# ARGV: keys, as a JSON list. Returns the lengths of the facts of each, and all of them, encoded one after the other: to
# read a string costs the client some microseconds, however short it is.
FACTS: Final = LuaScript.of(
    COMMON,
    """
local fields, entries, lengths = {}, {}, {}
local keys = cjson.decode(ARGV[1])
for index, key in ipairs(keys) do fields[index] = 'entries:' .. key end
local counts = read(fields)
for index, key in ipairs(keys) do
  for entry = 1, tonumber(counts[index]) or 0 do entries[#entries + 1] = 'facts:' .. key .. ' ' .. entry end
end
local found, position = {}, 0
for first = 1, #entries, 1000 do
  local part = {unpack(entries, first, math.min(first + 999, #entries))}
  for _, entry in ipairs(read(part)) do found[#found + 1] = entry end
end
for index = 1, #keys do
  local length = 0
  for _ = 1, tonumber(counts[index]) or 0 do
    position = position + 1
    length = length + #found[position]
  end
  lengths[index] = length
end
return {table.concat(lengths, ' '), table.concat(found)}
""",
)
