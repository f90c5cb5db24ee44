"""Scripts for facts. Each is atomic."""

from typing import Final

from .common import COMMON, LuaScript

_FEW = 3
"""Number of messages that hold the facts of most agents. That many are read together with their count."""

# ARGV: worker, number, remaining parts of the batch, usage, two JSON lists, data. The first list has for each agent
# with facts: key, agent, token, whether its facts are replaced, length of the facts; the second for each agent that
# ends: key, token, failed, length of the completion. Returns the refused keys. A gap in the numbers shows that the
# server has lost writes. All leases that the worker acquired before are then invalid, because facts may be missing.
WRITE: Final = LuaScript.of(
    COMMON,
    """
local worker, number, rest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local histories, ends = unpack(cjson.decode(ARGV[5]))
local cut = cutter(ARGV[6])
local fields = {}
for _, each in ipairs(histories) do fields[#fields + 1] = 'agent:' .. each[2] end
for _, each in ipairs(ends) do fields[#fields + 1] = 'agent:' .. each[1] end
local agents = #fields
for _, each in ipairs(histories) do fields[#fields + 1] = 'entries:' .. each[1] end
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
for index, each in ipairs(histories) do
  local key, _, token, replaces, length = unpack(each)
  local facts = cut(length)
  if mine(index, token) then
    local count = counts[key] or tonumber(found[agents + index]) or 0
    if replaces then
      for entry = 1, count do redis.call('HDEL', run .. 'state', 'facts:' .. key .. ' ' .. entry) end
      count = 0
    end
    if facts ~= '' then
      count = count + 1
      set('facts:' .. key .. ' ' .. count, facts)
    end
    counts[key] = count
    set('entries:' .. key, count)
  else
    refused[#refused + 1] = key
  end
end

local keys, completions = {}, {}
for index, each in ipairs(ends) do
  local key, token, failed, length = unpack(each)
  local ending = cut(length)
  if mine(#histories + index, token) then
    keys[#keys + 1] = key
    completions[#completions + 1] = ending
    set('agent:' .. key, '! ' .. token .. (failed and ' 1' or ' 0'))
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

# ARGV: keys, as a JSON list. Returns the lengths of the facts of each key, and all facts in one string: each string in
# a reply costs the client some microseconds, however short it is.
FACTS: Final = LuaScript.of(
    COMMON,
    f"""
local few, fields, entries, found, lengths = {_FEW}, {{}}, {{}}, {{}}, {{}}
local keys = cjson.decode(ARGV[1])
for _, key in ipairs(keys) do
  fields[#fields + 1] = 'entries:' .. key
  for entry = 1, few do fields[#fields + 1] = 'facts:' .. key .. ' ' .. entry end
end
local first_ones, rest = read(fields), {{}}
local function count(index) return tonumber(first_ones[(index - 1) * (few + 1) + 1]) or 0 end
for index, key in ipairs(keys) do
  for entry = few + 1, count(index) do entries[#entries + 1] = 'facts:' .. key .. ' ' .. entry end
end
for first = 1, #entries, 1000 do
  local part = {{unpack(entries, first, math.min(first + 999, #entries))}}
  for _, entry in ipairs(read(part)) do rest[#rest + 1] = entry end
end
local position = 0
for index = 1, #keys do
  local length = 0
  for entry = 1, count(index) do
    local facts = first_ones[(index - 1) * (few + 1) + 1 + entry]
    if entry > few then
      position = position + 1
      facts = rest[position]
    end
    found[#found + 1] = facts
    length = length + #facts
  end
  lengths[index] = length
end
return {{table.concat(lengths, ' '), table.concat(found)}}
""",
)
