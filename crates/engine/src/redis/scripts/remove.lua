-- KEYS: the cell, cells. ARGV: key, version.
if redis.call('HGET', KEYS[1], 'version') == ARGV[2] then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('UNLINK', KEYS[1])
end
return 1
