-- KEYS: cells. ARGV: first and last key, the name of the leader's cell, the prefix of the names of the others.
local answer = {}
for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2])) do
  local name = key == 'leader' and ARGV[3] or ARGV[4] .. key
  answer[#answer + 1] = {key, unpack(cell('here', name, KEYS[1], key))}
end
return answer
