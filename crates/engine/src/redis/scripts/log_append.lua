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
local new, at = redis.call('SADD', KEYS[2], ARGV[1]), string.format('%.0f', count)
local written = redis.pcall('HSET', KEYS[1], at, ARGV[3], ARGV[2], at)
if type(written) == 'table' and written.err then
  -- A task without output that stays in the set does no harm: it is deleted with the others.
  if new == 1 then
    redis.pcall('SREM', KEYS[2], ARGV[1])
  end
  return written
end
return {'stored'}
