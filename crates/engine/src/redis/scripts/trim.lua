-- KEYS: meta, journal. ARGV: id, the floor, the most entries.
-- A replica that took over may not know the floor, and needs the entries below it.
local noted = redis.call('HMGET', KEYS[1], 'id', 'floor')
if noted[1] ~= ARGV[1] or not noted[2] or less(noted[2], ARGV[2]) then
  return 0
end
return redis.call('XTRIM', KEYS[2], 'MINID', '~', ARGV[2] .. '-0', 'LIMIT', ARGV[3])
