-- KEYS: the log. ARGV: number, the damaged record (empty if it is missing), the record.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') == ARGV[2] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
