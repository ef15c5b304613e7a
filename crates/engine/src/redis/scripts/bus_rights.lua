-- KEYS: a key that nothing else uses. Tries each command of the bus, and answers those that fail, each with the error.
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
try('TIME')
try('HSET', key, 'a', 'b')
try('HGET', key, 'a')
try('HMGET', key, 'a')
redis.call('UNLINK', key)
try('XGROUP', 'CREATE', key, 'a', '0', 'MKSTREAM')
try('XADD', key, '1-0', 'a', 'b')
try('XINFO', 'STREAM', key)
try('XLEN', key)
try('XRANGE', key, '-', '+')
try('XREAD', 'STREAMS', key, '0-0')
try('XREADGROUP', 'GROUP', 'a', 'b', 'STREAMS', key, '>')
try('XAUTOCLAIM', key, 'a', 'b', '0', '0-0')
try('XPENDING', key, 'a')
try('XACK', key, 'a', '1-0')
try('XTRIM', key, 'MINID', '1')
try('XDEL', key, '1-0')
try('XGROUP', 'DELCONSUMER', key, 'a', 'b')
redis.call('UNLINK', key)
return failed
