-- KEYS: unfinished, the snapshot. ARGV: number, chunk. A snapshot that was pruned stays so.
if redis.call('SISMEMBER', KEYS[1], KEYS[2]) == 0 then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
