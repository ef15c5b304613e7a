-- KEYS: snapshots, unfinished. ARGV: position, manifest, the name of the snapshot (empty if nobody knows it), the
-- position of a newer one. Its chunks are removed as those of an unfinished one.
--
-- A replica that took over may lack the newer one, and needs this one.
if redis.call('HEXISTS', KEYS[1], ARGV[4]) == 1 and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  -- Nothing has this name: it only shows that the last command here will be done.
  redis.call('HDEL', KEYS[1], '')
  if ARGV[3] ~= '' then
    redis.call('SADD', KEYS[2], ARGV[3])
  end
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return 1
