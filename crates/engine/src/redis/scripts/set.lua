-- KEYS: the cell, cells, writings. ARGV: key, '=' and the version that was seen (empty if there was no cell),
-- nonce, then owner, epoch, ttl_ms, held, value, sum.
local there = cell('conflict', KEYS[1], KEYS[2], ARGV[1])
if there[1] == 'gone' then
  return there
end
-- The same writing, sent before: its nonce is the end of the version.
if there[2] and string.sub(there[2], -#ARGV[3]) == ARGV[3] then
  return {'done', there[2]}
end
if (there[2] and '=' .. there[2] or '') ~= ARGV[2] then
  return there
end
-- Adds nothing: it only shows that the last command here will be done.
redis.call('ZADD', KEYS[2], 'XX', 0, ARGV[1])
-- A number that is drawn and not used is skipped.
local version = string.format('%.0f', redis.call('INCR', KEYS[3])) .. '-' .. ARGV[3]
redis.call('HSET', KEYS[1], 'version', version, 'owner', ARGV[4], 'epoch', ARGV[5], 'ttl_ms', ARGV[6],
  'held', ARGV[7], 'value', ARGV[8], 'sum', ARGV[9])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return {'done', version}
