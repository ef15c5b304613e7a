local FIELDS = {'version', 'owner', 'epoch', 'ttl_ms', 'held', 'value', 'sum'}

-- The fields of a cell, after a word; `gone` if a cell that was written is not there.
local function cell(word, name, cells, key)
  local found = redis.call('HMGET', name, unpack(FIELDS))
  if not found[1] then
    return {redis.call('ZSCORE', cells, key) and 'gone' or 'none'}
  end
  return {word, unpack(found)}
end

