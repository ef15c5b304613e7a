-- KEYS: a key. Tries to read and to write it, changes nothing, and answers the errors.
local failed = {}
for _, answer in ipairs({redis.pcall('EXISTS', KEYS[1]), redis.pcall('HDEL', KEYS[1], '')}) do
  if type(answer) == 'table' and answer.err then
    failed[#failed + 1] = answer.err
  end
end
return failed
