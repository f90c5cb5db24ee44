"""Scripts for tool calls, rates and permits, which all workers share. Each is atomic.

`permits:NAME` is a hash with the number of permits of each worker, and a field "?" if a worker waits for one."""

from typing import Final

from .common import COMMON, IDEMPOTENCE, MAX_UPDATES, OUTAGE_GRACE, LuaScript

CLAIM: Final = -2
"""Value of ttl that claims the call."""
_MAX_KEPT_BYTES = 2_000
"""Larger outcomes that expire get a key of their own, so that their memory is freed."""

# ARGV: worker, a JSON list with name, ttl and outcome length of each change, outcomes. ttl: -2 claims the call, 0
# releases the claim, -1 keeps the outcome as long as the run, otherwise the outcome is kept for that many milliseconds.
# Returns for each claim 1 if it is granted, 0 if another worker makes the call, or the outcome.
CALLS: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    f"""
local worker = ARGV[1]
local fields, calls, changed, results, alive = {{}}, {{}}, {{}}, {{}}, {{}}
local time

local function now()
  time = time or math.floor(micros() / 1000)
  return time
end

local listed, cut = cjson.decode(ARGV[2]), cutter(ARGV[3])
for index, each in ipairs(listed) do fields[index] = 'call:' .. each[1] end
for index, found in ipairs(read(fields)) do calls[fields[index]] = found end

local function change(field, value)
  calls[field] = value
  changed[field] = true
end

local function is_alive(other)
  if alive[other] == nil then
    local meta, found = read_with_meta(now(), {{'alive:' .. other}})
    alive[other] = meta.spares_expired or (tonumber(found[1]) or 0) > now()
  end
  return alive[other]
end

local function outcome_of(field)
  local found = calls[field]
  if found == '@' then return redis.call('GET', run .. field) end
  local expires, outcome = string.match(found, '^!(%d+) (.*)$')
  return (expires == '0' or tonumber(expires) > now()) and outcome
end

local function claim_call(field)
  local found = calls[field]
  if found and string.find(found, '^[!@]') then
    local outcome = outcome_of(field)
    if outcome then return outcome end
    found = nil
  end
  if not found then
    change(field, '?' .. worker)
    return 1
  end
  local kind, rest = string.sub(found, 1, 1), string.sub(found, 2)
  if rest == worker then return 1 end
  if is_alive(rest) then
    if kind == '?' then change(field, '*' .. rest) end
    return 0
  end
  change(field, kind .. worker)
  return 1
end

local function complete(field, name, ttl, outcome)
  local found = calls[field]
  if found ~= '?' .. worker and found ~= '*' .. worker then return end
  if ttl == 0 then
    change(field, false)
  elseif ttl < 0 then
    change(field, '!0 ' .. outcome)
  elseif #outcome <= {_MAX_KEPT_BYTES} then
    change(field, '!' .. integer(now() + ttl) .. ' ' .. outcome)
  else
    redis.call('SET', run .. field, outcome, 'PX', ttl)
    change(field, '@')
  end
  if string.sub(found, 1, 1) == '*' then
    redis.call('XADD', run .. 'news', 'MAXLEN', '~', {MAX_UPDATES}, '*', 'landed', name)
  end
end

for _, each in ipairs(listed) do
  local name, ttl, length = unpack(each)
  local outcome = cut(length)
  if ttl == {CLAIM} then
    results[#results + 1] = claim_call('call:' .. name)
  else
    complete('call:' .. name, name, ttl, outcome)
  end
end
local released = {{}}
for field in pairs(changed) do
  if calls[field] then set(field, calls[field]) else released[#released + 1] = field end
end
if #released > 0 then redis.call('HDEL', run .. 'state', unpack(released)) end
save()
return results
""",
)

# ARGV: once (3), name, interval and ahead in microseconds. Returns the microseconds to wait.
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
save()
return wait
""",
)

# ARGV: once (3), name, worker, limit. Returns 1 if granted, 0 if other workers hold all permits. Permits of workers
# that are gone are free.
ACQUIRE_PERMIT: Final = LuaScript.of(
    COMMON,
    OUTAGE_GRACE,
    IDEMPOTENCE,
    """
local previous = previous_result()
if previous then return tonumber(previous) end
local key, worker, limit = run .. 'permits:' .. ARGV[4], ARGV[5], tonumber(ARGV[6])
local held, others, counts, fields = 0, {}, {}, {}
local found = redis.call('HGETALL', key)
for index = 1, #found, 2 do
  local other, count = found[index], tonumber(found[index + 1])
  if other == worker then
    held = held + count
  elseif other ~= '?' then
    others[#others + 1], counts[#counts + 1], fields[#fields + 1] = other, count, 'alive:' .. other
  end
end
if #others > 0 then
  local now = math.floor(micros() / 1000)
  local meta, alive = read_with_meta(now, fields)
  for index, other in ipairs(others) do
    if meta.spares_expired or (tonumber(alive[index]) or 0) > now then
      held = held + counts[index]
    else
      redis.call('HDEL', key, other)
    end
  end
end
local granted = held < limit and 1 or 0
if granted == 1 then redis.call('HINCRBY', key, worker, 1) else redis.call('HSET', key, '?', 1) end
keep_result(granted)
save()
return granted
""",
)

# ARGV: once (3), name, worker, name of the update that wakes waiting workers.
RELEASE_PERMIT: Final = LuaScript.of(
    COMMON,
    IDEMPOTENCE,
    f"""
if previous_result() then return end
local key, worker = run .. 'permits:' .. ARGV[4], ARGV[5]
local count = tonumber(redis.call('HGET', key, worker) or 0)
if count > 1 then redis.call('HINCRBY', key, worker, -1) else redis.call('HDEL', key, worker) end
if redis.call('HDEL', key, '?') == 1 then
  redis.call('XADD', run .. 'news', 'MAXLEN', '~', {MAX_UPDATES}, '*', 'landed', ARGV[6])
end
keep_result('')
save()
""",
)
