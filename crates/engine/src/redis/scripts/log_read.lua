-- KEYS: the log. ARGV: the number of the first chunk, most bytes, bytes that a record adds.
local answer, bytes = {}, 0
for number = tonumber(ARGV[1]), redis.call('HLEN', KEYS[1]) / 2 - 1 do
  local record = redis.call('HGET', KEYS[1], string.format('%.0f', number)) or ''
  bytes = bytes + #record - tonumber(ARGV[3])
  if #answer > 0 and bytes > tonumber(ARGV[2]) then
    break
  end
  answer[#answer + 1] = record
end
return answer
