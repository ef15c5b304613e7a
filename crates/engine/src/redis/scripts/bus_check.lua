-- KEYS: bus.
local there = noted(KEYS[1])
return there and {'here', there.journal, there.term, there.generation, there.last} or {'gone'}
