-- KEYS: a key that nothing else uses. Tries each command of this engine, and answers those that fail, each with the error.
local failed, key = {}, KEYS[1]
local function try(command, ...)
  local answer = redis.pcall(command, ...)
  if type(answer) == 'table' and answer.err then
    failed[#failed + 1] = command
    failed[#failed + 1] = answer.err
  end
end
try('UNLINK', key)
if #failed > 0 then
  return failed
end
try('EXISTS', key)
try('HSET', key, 'a', 'b')
try('HGET', key, 'a')
try('HMGET', key, 'a')
try('HGETALL', key)
try('HEXISTS', key, 'a')
try('HLEN', key)
try('HDEL', key, 'a')
redis.call('UNLINK', key)
try('XADD', key, '1-0', 'a', 'b')
try('XRANGE', key, '-', '+')
try('XREVRANGE', key, '+', '-')
try('XREAD', 'STREAMS', key, '0-0')
try('XTRIM', key, 'MAXLEN', '0')
redis.call('UNLINK', key)
try('ZADD', key, '0', 'a')
try('ZSCORE', key, 'a')
try('ZRANGEBYLEX', key, '-', '+')
try('ZREM', key, 'a')
redis.call('UNLINK', key)
try('SADD', key, 'a')
try('SISMEMBER', key, 'a')
try('SMEMBERS', key)
try('SSCAN', key, '0')
try('SREM', key, 'a')
redis.call('UNLINK', key)
try('INCR', key)
redis.call('UNLINK', key)
return failed
