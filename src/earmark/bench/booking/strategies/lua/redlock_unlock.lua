-- Releases one lock of a Redlock, if it is still ours: without the comparison, a late holder would release the lock of
-- its next holder.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token of its holder
-- Returns  1, or 0 when it was not ours any more

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
