-- KEYS: meta, journal. ARGV: id, a position that was there before, previous position and hash, position and hash,
-- the parcel.
local there, throttle = ending(KEYS[1], KEYS[2], ARGV[1])
if throttle then
  return throttle
end
if there.position == ARGV[5] and there.hash == ARGV[6] then
  return {'done', there.position, there.hash, there.floor}
end
-- A server that has forgotten must not go on from where it is.
local behind = less(there.position, ARGV[2])
if behind or there.position ~= ARGV[3] or there.hash ~= ARGV[4] then
  return {'conflict', there.position, there.hash, there.floor}
end
-- The note first: it can be put back by the same command. An entry cannot, since no other may ever take its name.
redis.call('HSET', KEYS[1], 'position', ARGV[5], 'hash', ARGV[6])
local added = redis.pcall('XADD', KEYS[2], ARGV[5] .. '-0', 'hash', ARGV[6], 'batch', ARGV[7])
if type(added) == 'table' and added.err then
  redis.call('HSET', KEYS[1], 'position', there.position, 'hash', there.hash)
  return added
end
return {'done', ARGV[5], ARGV[6], there.floor}
