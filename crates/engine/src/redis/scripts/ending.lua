-- Numbers are compared as text: positions have 64 bits, numbers here 53.
local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end

-- What is noted about the journal, if it is the one that was asked for and its last entry is the one that is
-- noted. Otherwise nothing, and what is wrong.
local function ending(meta, journal, id)
  local noted = redis.call('HMGET', meta, 'id', 'position', 'hash', 'floor')
  for field = 1, 4 do
    if not noted[field] then
      return nil, {'gone'}
    end
  end
  if noted[1] ~= id then
    return nil, {'other', noted[1]}
  end
  local last = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)[1]
  local at = last and last[1] or '0-0'
  if at ~= noted[2] .. '-0' or (last and last[2][2] ~= noted[3]) then
    return nil, {'torn', noted[2], at}
  end
  return {position = noted[2], hash = noted[3], floor = noted[4]}
end

