-- Numbers are compared as text: ids have 64 bits, numbers here 53.
local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end

-- What is noted about the claims of the bus, and the lease of the last offer. Nothing if it is not there.
local function noted(bus)
  local found = redis.call('HMGET', bus, 'journal', 'term', 'generation', 'last')
  if found[1] and found[2] and found[3] and found[4] then
    return {journal = found[1], term = found[2], generation = found[3], last = found[4]}
  end
end

