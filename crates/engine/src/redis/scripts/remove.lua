-- KEYS: the cell, cells. ARGV: key, version.
if redis.call('HGET', KEYS[1], 'version') == ARGV[2] then
  -- Nothing has this name: it only shows that the last command here will be done.
  redis.call('ZREM', KEYS[2], '')
  redis.call('UNLINK', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return 1
