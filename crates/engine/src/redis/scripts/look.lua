-- KEYS: the cell, cells. ARGV: key.
return cell('here', KEYS[1], KEYS[2], ARGV[1])
