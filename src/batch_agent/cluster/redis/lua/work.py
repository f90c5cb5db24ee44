"""Scripts for the work queue. Each is atomic."""

from typing import Final

from .common import COMMON, IDEMPOTENCE, LOST, OUTAGE_GRACE, LuaScript

# ARGV: retry failed, a creation mark, a JSON list with key and data length of each job, data. Returns the run's
# creation mark, set by the first submitter, and key and completion of each job that needs no work.
SUBMIT: Final = LuaScript.of(
    COMMON,
    """
local fields, listed = {}, cjson.decode(ARGV[3])
local jobs, cut = #listed, cutter(ARGV[4])
for index, each in ipairs(listed) do fields[index] = 'agent:' .. each[1] end
fields[jobs + 1] = 'born'
fields[jobs + 2] = 'pending'
local found = read(fields)
local born, pending = found[jobs + 1], tonumber(found[jobs + 2]) or 0
if not born then
  born = ARGV[2]
  set('born', born)
end
local retry = ARGV[1] == '1'
local ended, completions, known, queued = {}, {}, {}, {}
for index, each in ipairs(listed) do
  local key, data, one = each[1], cut(each[2]), found[index]
  local failed = one and string.match(one, '^! %d+ (%d)$')
  if failed and not (retry and failed == '1') then
    ended[#ended + 1] = key
    completions[#completions + 1] = 'data:' .. key
  elseif (failed or not one) and not known[key] then
    known[key] = true
    queued[#queued + 1] = key
    set('agent:' .. key, '0 0 ')
    set('data:' .. key, data)
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

# ARGV: once (3), worker, max jobs, divisor of the pending agents (limits the leases to that part of them), ttl in
# milliseconds. Returns the last wake-up entry if there is nothing to lease (false if no work was ever submitted), else
# one string per lease: token, attempts and number of fact entries, then the job in the next line.
LEASE: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
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
if not run_fields[1] then return {{false, leases}} end
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

# ARGV: worker, ttl in milliseconds, then key and token of each agent. Returns the keys that other workers hold or have
# ended.
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

# ARGV: worker, then key and token of each agent.
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
