-- KEYS: the log, logs. ARGV: task, place, record, most chunks, how many there are.
local number = redis.call('HGET', KEYS[1], ARGV[2])
if number then
  return {'existed', number, redis.call('HGET', KEYS[1], number) or ''}
end
-- Each chunk has two fields: itself by number, and its number by place.
local count = redis.call('HLEN', KEYS[1]) / 2
if count ~= tonumber(ARGV[5]) then
  return {'conflict'}
end
if count >= tonumber(ARGV[4]) then
  return {'full'}
end
redis.call('HSET', KEYS[1], string.format('%.0f', count), ARGV[3], ARGV[2], string.format('%.0f', count))
redis.call('SADD', KEYS[2], ARGV[1])
return {'stored'}
