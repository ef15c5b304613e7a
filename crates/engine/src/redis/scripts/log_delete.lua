-- KEYS: logs, then the log of each task. ARGV: the tasks.
-- Nothing has this name: it only shows that the last command here will be done.
redis.call('SREM', KEYS[1], '')
redis.call('UNLINK', unpack(KEYS, 2))
redis.call('SREM', KEYS[1], unpack(ARGV))
return 1
