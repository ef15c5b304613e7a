-- KEYS: unfinished, the snapshot, snapshots, journal. ARGV: position, manifest, number of chunks, the name of one that
-- may be in its place (empty if none is), the hash of the batch that ends at the position.
--
-- A replica that took over may lack that batch. Two snapshots ahead of the journal would have the ones pruned that it
-- can be read with.
local batch = redis.call('XRANGE', KEYS[4], ARGV[1] .. '-0', ARGV[1] .. '-0')[1]
if not batch or batch[2][2] ~= ARGV[5] then
  return 2
end
if redis.call('SISMEMBER', KEYS[1], KEYS[2]) == 0 or redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[3]) then
  return 0
end
-- These two change nothing: they show that the commands after the next one will be done.
redis.call('SADD', KEYS[1], KEYS[2])
redis.call('SREM', KEYS[1], '')
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
redis.call('SREM', KEYS[1], KEYS[2])
-- Whoever reads the one that was there before may go on until the next pruning.
if ARGV[4] ~= '' then
  redis.call('SADD', KEYS[1], ARGV[4])
end
return 1
