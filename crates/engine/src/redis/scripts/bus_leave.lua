-- KEYS: queues. ARGV: group, consumer, the most messages to count.
local holding = 0
for _, queue in ipairs(KEYS) do
  local pending = redis.pcall('XPENDING', queue, ARGV[1], '-', '+', ARGV[3], ARGV[2])
  if not pending.err then
    holding = holding + #pending
  elseif not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
end
if holding == 0 then
  for _, queue in ipairs(KEYS) do
    local removed = redis.pcall('XGROUP', 'DELCONSUMER', queue, ARGV[1], ARGV[2])
    local gone = type(removed) == 'table' and removed.err
    if gone and not (string.find(gone, 'NOGROUP', 1, true) or string.find(gone, 'requires the key', 1, true)) then
      return removed
    end
  end
end
return holding
