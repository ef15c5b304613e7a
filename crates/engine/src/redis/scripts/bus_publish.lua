-- KEYS: bus, assigned, dispatch, status, logs. ARGV: journal, term, generation, the offer before this one, lease, the
-- previous lease of the task (empty if there is none), what workers are told, what nodes are told.
local there = noted(KEYS[1])
if not there then
  return {'gone'}
end
if there.journal ~= ARGV[1] then
  return {'other', there.journal}
end
if there.term ~= ARGV[2] or there.generation ~= ARGV[3] then
  -- Nobody has claimed more than is noted, unless the server has forgotten it.
  if less(there.term, ARGV[2]) or (there.term == ARGV[2] and less(there.generation, ARGV[3])) then
    return {'gone'}
  end
  return {'stale', there.term, there.generation}
end
if not less(there.last, ARGV[5]) then
  return {'repeated'}
end
-- The server has forgotten the one before. Or it has refused it just now: then this one must not be published either.
if less(there.last, ARGV[4]) then
  return {'gone'}
end
-- The note first: it can be put back by the same command.
redis.call('HSET', KEYS[1], 'last', ARGV[5])
local id = ARGV[5] .. '-0'
local function failed(answer, channel)
  local error = type(answer) == 'table' and answer.err
  if not error and answer then
    return nil
  end
  redis.call('HSET', KEYS[1], 'last', there.last)
  if not error then
    return {'gone'}
  end
  return string.find(error, 'equal or smaller', 1, true) and {'ahead', channel} or answer
end
-- What the previous lease left is not needed, whatever becomes of this one.
local why = failed(redis.pcall('UNLINK', KEYS[4], KEYS[5]))
if not why and ARGV[6] ~= '' then
  local previous = ARGV[6] .. '-0'
  why = failed(redis.pcall('XACK', KEYS[3], 'workers', previous)) or failed(redis.pcall('XDEL', KEYS[3], previous))
end
why = why or failed(redis.pcall('XADD', KEYS[3], id, 'data', ARGV[7]), KEYS[3])
if why then
  return why
end
why = failed(redis.pcall('XADD', KEYS[2], 'NOMKSTREAM', id, 'data', ARGV[8]), KEYS[2])
if why then
  redis.call('XDEL', KEYS[3], id)
  return why
end
redis.call('XADD', KEYS[4], id, 'data', ARGV[8])
redis.call('XADD', KEYS[5], id, 'data', ARGV[8])
return {'done'}
