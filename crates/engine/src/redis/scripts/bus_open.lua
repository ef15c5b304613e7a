-- KEYS: bus, assigned, handoff, then topics. ARGV: journal, group.
--
-- It may be repeated: what is there stays.
local there = noted(KEYS[1])
if there and there.journal ~= ARGV[1] then
  return {'other', there.journal}
end
if not there then
  redis.call('HSET', KEYS[1], 'journal', ARGV[1], 'term', '0', 'generation', '0', 'last', '0')
  there = noted(KEYS[1])
end
for queue = 2, 3 do
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[queue], ARGV[2], '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
    return made
  end
end
for topic = 4, #KEYS do
  if redis.call('EXISTS', KEYS[topic]) == 0 then
    redis.call('XDEL', KEYS[topic], redis.call('XADD', KEYS[topic], '*', 'data', ''))
  end
end
return {'here', there.journal, there.term, there.generation, there.last}
