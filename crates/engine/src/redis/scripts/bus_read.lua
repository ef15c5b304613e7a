-- KEYS: channels. ARGV: a cursor for each, most entries, most bytes of data, the length of the longest message.
--
-- Looks at some channels at once for one entry, then reads those that have one: so that what this takes has a limit.
local CHANNELS, ENTRIES = 32, 8
local all = #KEYS
local most, most_bytes, longest = tonumber(ARGV[all + 1]), tonumber(ARGV[all + 2]), tonumber(ARGV[all + 3])
local answer, count, bytes = {}, 0, 0

-- `false` if the budget is spent.
local function give(place, entry)
  local length, data = -4, false
  for field = 1, #entry[2], 2 do
    local name, value = entry[2][field], entry[2][field + 1]
    length = length + #name + #value
    if name == 'data' and not data then
      data = value
    end
  end
  if length > longest then
    data = false
  end
  bytes = bytes + (data and #data or 0)
  if count > 0 and (count >= most or bytes > most_bytes) then
    return false
  end
  count = count + 1
  answer[#answer + 1] = place - 1
  answer[#answer + 1] = entry[1]
  answer[#answer + 1] = math.max(length, 0)
  answer[#answer + 1] = data
  return true
end

for first = 1, all, CHANNELS do
  local last = math.min(first + CHANNELS - 1, all)
  local ask, some = {'COUNT', 1, 'STREAMS'}, last - first + 1
  for channel = first, last do
    ask[4 + channel - first] = KEYS[channel]
    ask[4 + some + channel - first] = ARGV[channel]
  end
  local place = first
  for _, news in ipairs(redis.call('XREAD', unpack(ask)) or {}) do
    while KEYS[place] ~= news[1] do
      place = place + 1
    end
    local entries = news[2]
    while #entries > 0 do
      for _, entry in ipairs(entries) do
        if not give(place, entry) then
          return {place - 1, answer}
        end
      end
      local after = '(' .. entries[#entries][1]
      entries = redis.call('XRANGE', KEYS[place], after, '+', 'COUNT', ENTRIES)
    end
    place = place + 1
  end
end
return {all, answer}
