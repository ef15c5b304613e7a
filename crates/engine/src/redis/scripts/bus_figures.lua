-- KEYS: a queue. ARGV: group.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {0, 0, '0-0'}
end
local taken = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if taken.err and not string.find(taken.err, 'NOGROUP', 1, true) then
  return taken
end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local last = '0-0'
for field = 1, #info, 2 do
  if info[field] == 'last-generated-id' then
    last = info[field + 1]
  end
end
return {redis.call('XLEN', KEYS[1]), taken.err and 0 or taken[1], last}
