-- KEYS: meta, journal. ARGV: the id of a journal to make if there is none; empty if one must be there.
local id = redis.call('HGET', KEYS[1], 'id')
if not id then
  if ARGV[1] == '' or redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
    return {'gone'}
  end
  id = ARGV[1]
  redis.call('HSET', KEYS[1], 'id', id, 'position', '0', 'hash', string.rep('0', 32), 'floor', '0')
end
return {'here', id}
