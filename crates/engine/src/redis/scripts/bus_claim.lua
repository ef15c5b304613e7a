-- KEYS: bus. ARGV: journal, term, the highest generation that the caller knows of.
local there = noted(KEYS[1])
if not there then
  return {'gone'}
end
if there.journal ~= ARGV[1] then
  return {'other', there.journal}
end
if less(ARGV[2], there.term) then
  return {'stale', there.term, there.generation}
end
local used = less(there.generation, ARGV[3]) and ARGV[3] or there.generation
local generation = string.format('%.0f', tonumber(used) + 1)
redis.call('HSET', KEYS[1], 'term', ARGV[2], 'generation', generation)
return {'here', there.journal, ARGV[2], generation, there.last}
