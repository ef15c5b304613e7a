-- KEYS: logs, then the log of each task. ARGV: the tasks.
for number, task in ipairs(ARGV) do
  redis.call('UNLINK', KEYS[number + 1])
  redis.call('SREM', KEYS[1], task)
end
return 1
