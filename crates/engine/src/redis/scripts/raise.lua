-- KEYS: meta, journal, snapshots. ARGV: id, the new floor.
local there, throttle = ending(KEYS[1], KEYS[2], ARGV[1])
if throttle then
  return throttle
end
-- What the floor stands on may be gone, or ahead of a server that has forgotten.
local stands = redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 and not less(there.position, ARGV[2])
if stands and less(there.floor, ARGV[2]) then
  redis.call('HSET', KEYS[1], 'floor', ARGV[2])
  there.floor = ARGV[2]
end
return {'here', there.position, there.hash, there.floor}
