-- Takes, queues for, extends and gives back leases. Many calls travel in one script, and each is decided in turn.
--
-- KEYS[1]    the fence: the last number given to anybody on this server (on a cluster: in this slot)
-- KEYS[2..]  for each call the leases of its keys, then the queues of its keys
-- ARGV[1]    the channel of the process that calls
-- ARGV[2..]  the calls, one after the other; n is how many keys the call names:
--   "a" n owner ttl_ms                           take all n or none
--   "w" n owner ttl_ms channel wait_ms queue_max take all n, or stand in line for the first that is taken
--   "x" n owner ttl_ms                           extend
--   "r" n owner                                  give back
--   "l" n owner ttl_ms channel                   leave the line, and give back what was handed over meanwhile
--   "e" n                                        take away from whoever has it
-- Returns one answer per call:
--   a, w       the fence, if granted; else {ms, now_us, i, …}: which keys are taken, when the first of them runs out
--              (-1: its queue is full), and this server's time
--   x, r, l, e 1, or 0 if any of the keys did not belong to the owner any more
-- and last {owner, fence, now_us, …}: leases that were handed to waiters of the calling process
--
-- A lease is the string "owner|fence" with an expiry; a queue is a list of "owner|ttl_ms|channel".

local now
local last_fence
local answers = {}
local handed = {}

local function clock()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- Grows with every grant. Time is its floor, so that it also grows after all data was lost.
local function next_fence()
  if not last_fence then
    last_fence = tonumber(redis.call('GET', KEYS[1]) or 0)
    if last_fence < clock() then
      last_fence = clock() - 1
    end
  end
  last_fence = last_fence + 1
  return last_fence
end

-- Lua's own tostring would round a number of sixteen digits.
local function digits(number)
  return string.format('%.0f', number)
end

local function belongs(lease, owner)
  return lease and string.find(lease, owner, 1, true) == 1
end

-- Hands a lease to the first in line who still listens; the others of the dead line are dropped.
local function hand_over(lease_key, queue_key, caller)
  local tried = false
  while true do
    local entry = redis.call('LPOP', queue_key)
    if not entry then
      if tried then
        redis.call('DEL', lease_key)
      end
      return false
    end
    local owner, ttl, channel = string.match(entry, '^(.*)|(%d+)|([^|]*)$')
    local fence = digits(next_fence())
    redis.call('SET', lease_key, owner .. '|' .. fence, 'PX', ttl)
    tried = true
    -- Who calls reads it in the answer, whoever waits in the same process too; everybody else is told.
    if owner == caller then
      return true
    elseif channel == ARGV[1] then
      handed[#handed + 1] = owner
      handed[#handed + 1] = last_fence
      handed[#handed + 1] = clock()
      return true
    elseif redis.call('PUBLISH', channel, owner .. '|' .. fence .. '|' .. digits(clock())) > 0 then
      return true
    end
  end
end

local function give_back(base, n, owner)
  local leases = redis.call('MGET', unpack(KEYS, base, base + n - 1))
  local whole = 1
  for i = 1, n do
    if not belongs(leases[i], owner) then
      whole = 0
    end
  end
  -- Most often all of them are the owner's, and nobody waits.
  if whole == 1 and redis.call('EXISTS', unpack(KEYS, base + n, base + 2 * n - 1)) == 0 then
    redis.call('DEL', unpack(KEYS, base, base + n - 1))
    return 1
  end
  for i = 1, n do
    local lease_key, queue_key = KEYS[base + i - 1], KEYS[base + n + i - 1]
    if belongs(leases[i], owner) and not hand_over(lease_key, queue_key) then
      redis.call('DEL', lease_key)
    end
  end
  return whole
end

local function leave(base, n, entry, except)
  for i = 0, n - 1 do
    if i ~= except then
      redis.call('LREM', KEYS[base + n + i], 0, entry)
    end
  end
end

-- Which of the keys somebody else has. A free key with a line belongs to the first in it.
local function find_taken(base, n, owner)
  local taken, mine, fence = {}, 0, nil
  for i = 0, n - 1 do
    local lease_key, queue_key = KEYS[base + i], KEYS[base + n + i]
    local lease = redis.call('GET', lease_key)
    if not lease and redis.call('EXISTS', queue_key) == 1 and hand_over(lease_key, queue_key, owner) then
      lease = redis.call('GET', lease_key)
    end
    if belongs(lease, owner) then
      mine = mine + 1
      fence = tonumber(string.sub(lease, #owner + 2))
    elseif lease then
      taken[#taken + 1] = i
    end
  end
  return taken, mine, fence
end

local function grant(base, n, owner, ttl)
  local fence = next_fence()
  local lease = owner .. '|' .. digits(fence)
  for i = base, base + n - 1 do
    redis.call('SET', KEYS[i], lease, 'PX', ttl)
  end
  return fence
end

local function take(base, n, owner, ttl)
  -- Most often nobody has any of the keys, and nobody waits.
  if redis.call('EXISTS', unpack(KEYS, base, base + 2 * n - 1)) == 0 then
    return grant(base, n, owner, ttl)
  end
  local taken, mine, fence = find_taken(base, n, owner)
  if #taken > 0 then
    return nil, taken
  end
  -- A repeat, whose first answer was lost, or a lease that was handed over is not granted twice.
  return mine == n and fence or grant(base, n, owner, ttl)
end

-- Whoever waits holds nothing: what was handed over goes back before the next line is joined.
local function stand_in_line(base, n, entry, owner, taken, wait, queue_max)
  local first = taken[1]
  local lease_key, queue_key = KEYS[base + first], KEYS[base + n + first]
  give_back(base, n, owner)
  leave(base, n, entry, first)
  if not redis.call('LPOS', queue_key, entry) then
    if redis.call('LLEN', queue_key) >= queue_max then
      return -1
    end
    redis.call('RPUSH', queue_key, entry)
  end
  -- A line whose waiters all died is forgotten some time after the last would have given up.
  if redis.call('PTTL', queue_key) < wait + 10000 then
    redis.call('PEXPIRE', queue_key, wait + 10000)
  end
  return redis.call('PTTL', lease_key)
end

local function refusal(ms, taken)
  local answer = {ms, clock()}
  for _, i in ipairs(taken) do
    answer[#answer + 1] = i
  end
  return answer
end

local function extend(base, n, owner, ttl)
  for i = base, base + n - 1 do
    if not belongs(redis.call('GET', KEYS[i]), owner) then
      return 0
    end
  end
  for i = base, base + n - 1 do
    if redis.call('PTTL', KEYS[i]) < ttl then
      redis.call('PEXPIRE', KEYS[i], ttl)
    end
  end
  return 1
end

local function evict(base, n)
  local whole = 1
  for i = 0, n - 1 do
    local lease_key, queue_key = KEYS[base + i], KEYS[base + n + i]
    if redis.call('EXISTS', lease_key) == 0 then
      whole = 0
    end
    if not hand_over(lease_key, queue_key) then
      redis.call('DEL', lease_key)
    end
  end
  return whole
end

local word, base = 2, 2
while word <= #ARGV do
  local verb, n, owner = ARGV[word], tonumber(ARGV[word + 1]), ARGV[word + 2]
  local answer
  if verb == 'a' then
    local fence, taken = take(base, n, owner, ARGV[word + 3])
    answer = fence or refusal(0, taken)
    word = word + 4
  elseif verb == 'r' then
    answer = give_back(base, n, owner)
    word = word + 3
  elseif verb == 'x' then
    answer = extend(base, n, owner, tonumber(ARGV[word + 3]))
    word = word + 4
  elseif verb == 'w' then
    local ttl, channel, wait, queue_max = ARGV[word + 3], ARGV[word + 4], tonumber(ARGV[word + 5]), tonumber(ARGV[word + 6])
    local entry = owner .. '|' .. ttl .. '|' .. channel
    local fence, taken = take(base, n, owner, ttl)
    if fence then
      leave(base, n, entry)
      answer = fence
    else
      answer = refusal(stand_in_line(base, n, entry, owner, taken, wait, queue_max), taken)
    end
    word = word + 7
  elseif verb == 'l' then
    leave(base, n, owner .. '|' .. ARGV[word + 3] .. '|' .. ARGV[word + 4])
    answer = give_back(base, n, owner)
    word = word + 5
  else
    answer = evict(base, n)
    word = word + 2
  end
  answers[#answers + 1] = answer
  base = base + 2 * n
end

if last_fence then
  redis.call('SET', KEYS[1], digits(last_fence))
end
answers[#answers + 1] = handed
return answers
