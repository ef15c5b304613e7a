-- KEYS: topics. ARGV: how long entries are kept, in milliseconds.
local now = redis.call('TIME')
local before = now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(ARGV[1])
for _, topic in ipairs(KEYS) do
  redis.call('XTRIM', topic, 'MINID', string.format('%.0f', math.max(before, 0)))
end
return 1
