-- KEYS: the queue. ARGV: group, ids.
local ids = {unpack(ARGV, 2)}
redis.call('XDEL', KEYS[1], unpack(ids))
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
return 1
