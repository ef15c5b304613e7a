-- KEYS: status, logs, and the dispatch channel if the lease may still be offered. ARGV: lease.
local id, own, other = ARGV[1] .. '-0', {}, false
for channel = 1, 2 do
  local first = redis.call('XRANGE', KEYS[channel], '-', '+', 'COUNT', 1)[1]
  if first and first[1] == id then
    own[#own + 1] = KEYS[channel]
  elseif first or redis.call('EXISTS', KEYS[channel]) == 1 then
    other = true
  end
end
if KEYS[3] then
  redis.call('XDEL', KEYS[3], id)
  redis.call('XACK', KEYS[3], 'workers', id)
end
if #own > 0 then
  redis.call('UNLINK', unpack(own))
  return 'done'
end
return other and 'other' or 'absent'
