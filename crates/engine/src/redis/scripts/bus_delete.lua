-- KEYS: a channel of a job. ARGV: lease, ids. The first entry stays: it says whose channel it is.
local own = ARGV[1] .. '-0'
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first then
  return redis.call('EXISTS', KEYS[1]) == 1 and 'other' or 'absent'
end
if first[1] ~= own then
  return 'other'
end
local ids = {}
for argument = 2, #ARGV do
  if ARGV[argument] ~= own then
    ids[#ids + 1] = ARGV[argument]
  end
end
if #ids > 0 then
  redis.call('XDEL', KEYS[1], unpack(ids))
end
return 'done'
