-- KEYS: unfinished, the snapshot. One that was finished meanwhile stays.
if redis.call('SREM', KEYS[1], KEYS[2]) == 1 then
  redis.call('UNLINK', KEYS[2])
end
return 1
