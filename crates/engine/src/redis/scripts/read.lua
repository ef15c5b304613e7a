-- KEYS: meta, journal. ARGV: id, after, most bytes, bytes that a parcel adds, most batches.
local there, throttle = ending(KEYS[1], KEYS[2], ARGV[1])
if throttle then
  return throttle
end
local answer = {'here', there.position, there.hash, there.floor}
if less(ARGV[2], there.floor) then
  return answer
end
local from, bytes = '(' .. ARGV[2] .. '-0', 0
for count = 1, tonumber(ARGV[5]) do
  local entry = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', 1)[1]
  if not entry then
    break
  end
  local hash, parcel = entry[2][2], entry[2][4] or ''
  bytes = bytes + #parcel - tonumber(ARGV[4])
  if count > 1 and bytes > tonumber(ARGV[3]) then
    break
  end
  for _, part in ipairs({entry[1], hash, parcel}) do
    answer[#answer + 1] = part
  end
  from = '(' .. entry[1]
end
return answer
