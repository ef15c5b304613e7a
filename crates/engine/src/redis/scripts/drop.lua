-- KEYS: snapshots, unfinished. ARGV: position, manifest, the name of the snapshot (empty if nobody knows it).
-- Its chunks are removed as those of an unfinished one.
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if ARGV[3] ~= '' then
    redis.call('SADD', KEYS[2], ARGV[3])
  end
end
return 1
