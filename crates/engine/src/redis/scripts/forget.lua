-- KEYS: unfinished, the snapshot. One that was finished meanwhile stays.
if redis.call('SISMEMBER', KEYS[1], KEYS[2]) == 1 then
  -- Nothing has this name: it only shows that the last command here will be done.
  redis.call('SREM', KEYS[1], '')
  redis.call('UNLINK', KEYS[2])
  redis.call('SREM', KEYS[1], KEYS[2])
end
return 1
