-- Takes, queues for, extends and gives back leases. One script carries many calls, and each is decided in turn.
--
-- KEYS[1]    the fence: the last number granted on this server (on a cluster: in this slot)
-- KEYS[2..]  for each call the leases of its keys, then the queues of its keys
-- ARGV[1]    the channel of the process that calls
-- ARGV[2..]  the calls, one after the other; n is how many keys the call names:
--   "a" n owner ttl_ms                     take all n or none
--   "w" n owner ttl_ms channel max again   take all n, or join the queue of the first that is taken;
--                                          again is 1 if the owner may be queued already
--   "x" n owner ttl_ms                     extend
--   "r" n owner                            give back
--   "l" n owner ttl_ms channel             leave the queue, and give back what was handed over meanwhile
-- Returns one answer per call:
--   a, w       the fence, if granted; else {ms, now_us, was_queued, i, …}: which keys are taken, when the first of them
--              runs out (-1: its queue is full), this server's time, and 1 if the owner was queued or had a lease
--   x, r, l    1, or 0 if any of the keys did not belong to the owner any more
-- and last {owner, fence, now_us, …}: leases that were handed to waiters of the calling process
--
-- A lease is the string "owner|fence", and Redis expires it. While it has a queue, it is "owner|fence|until_us" and ends
-- at the time it names: so the key still exists, and the queue is served, when the holder died. A queue is a list of
-- "owner|ttl_ms|channel".

local KEYS, ARGV, call, find, format = KEYS, ARGV, redis.call, string.find, string.format
local QUEUE_MS = 86410000
local now
local last_fence
local answers = {}
local handed = {}

local function clock()
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- Lua's own tostring would round a number of sixteen digits.
local function digits(number)
  return format('%.0f', number)
end

-- Grows with every grant. Time is its floor, so that it also grows after all data was lost.
local function next_fence()
  if not last_fence then
    last_fence = tonumber(call('GET', KEYS[1]) or 0)
    if last_fence < clock() then
      last_fence = clock() - 1
    end
  end
  last_fence = last_fence + 1
  return last_fence
end

local function belongs(lease, owner)
  return lease and find(lease, owner, 1, true) == 1
end

-- When a lease with a queue ends; nil for one that Redis expires.
local function ends_at(lease)
  local time = string.match(lease, '|%d+|(%d+)$')
  return time and tonumber(time)
end

-- The lease, if it has not ended.
local function read(lease_key)
  local lease = call('GET', lease_key)
  local time = lease and ends_at(lease)
  if time and time <= clock() then
    return nil
  end
  return lease
end

local function write(lease_key, owner, fence, ttl, watched)
  if watched then
    call('SET', lease_key, owner .. '|' .. fence .. '|' .. digits(clock() + ttl * 1000), 'PX', QUEUE_MS)
  else
    call('SET', lease_key, owner .. '|' .. fence, 'PX', ttl)
  end
end

-- Hands a lease to the first waiter that is still subscribed; others are dropped. False: the queue is empty.
local function hand_over(lease_key, queue_key, caller)
  while true do
    local entry = call('LPOP', queue_key)
    if not entry then
      call('DEL', lease_key)
      return false
    end
    local owner, ttl, channel = string.match(entry, '^(.*)|(%d+)|([^|]*)$')
    local fence = digits(next_fence())
    write(lease_key, owner, fence, ttl, call('EXISTS', queue_key) == 1)
    -- The caller, and a waiter of the same process, read it in the answer; other processes get a message.
    if owner == caller then
      return true
    elseif channel == ARGV[1] then
      handed[#handed + 1] = owner
      handed[#handed + 1] = last_fence
      handed[#handed + 1] = clock()
      return true
    elseif call('PUBLISH', channel, owner .. '|' .. fence .. '|' .. digits(clock())) > 0 then
      return true
    end
  end
end

local function give_back(base, n, owner)
  local leases = n == 1 and {call('GET', KEYS[base])} or call('MGET', unpack(KEYS, base, base + n - 1))
  local whole, watched = 1, false
  for i = 1, n do
    local lease = leases[i]
    if not belongs(lease, owner) then
      whole = 0
    elseif find(lease, '|', #owner + 2, true) then
      watched = true
    end
  end
  -- Most often all of them are the owner's, and none has a queue.
  if whole == 1 and not watched then
    call('DEL', unpack(KEYS, base, base + n - 1))
    return 1
  end
  for i = 1, n do
    local lease = leases[i]
    if belongs(lease, owner) then
      local time = ends_at(lease)
      if time and time <= clock() then
        whole = 0
      end
      hand_over(KEYS[base + i - 1], KEYS[base + n + i - 1])
    end
  end
  return whole
end

local function leave_queue(base, n, entry, except)
  local left = 0
  for i = 0, n - 1 do
    if i ~= except then
      left = left + call('LREM', KEYS[base + n + i], 0, entry)
    end
  end
  return left
end

-- Which of the keys another owner has. A lease that ended and has a queue goes to the first waiter.
local function find_taken(base, n, owner)
  local taken, first, mine, fence = {}, nil, 0, nil
  for i = 0, n - 1 do
    local lease_key, queue_key = KEYS[base + i], KEYS[base + n + i]
    local lease = read(lease_key)
    if not lease and hand_over(lease_key, queue_key, owner) then
      lease = read(lease_key)
    end
    if belongs(lease, owner) then
      mine = mine + 1
      fence = tonumber(string.match(lease, '|(%d+)', #owner))
    elseif lease then
      first = first or lease
      taken[#taken + 1] = i
    end
  end
  return taken, first, mine, fence
end

local function extend(base, n, owner, ttl)
  for i = base, base + n - 1 do
    if not belongs(read(KEYS[i]), owner) then
      return 0
    end
  end
  for i = base, base + n - 1 do
    local lease = call('GET', KEYS[i])
    local time = ends_at(lease)
    if time then
      time = math.max(time, clock() + ttl * 1000)
      call('SET', KEYS[i], string.match(lease, '^(.*|%d+)|%d+$') .. '|' .. digits(time), 'PX', QUEUE_MS)
    elseif call('PTTL', KEYS[i]) < ttl then
      call('PEXPIRE', KEYS[i], ttl)
    end
  end
  return 1
end

-- The fence, if granted; else which keys are taken, the lease of the first, and how many are the owner's own.
local function take(base, n, owner, ttl)
  -- Most often all keys are free, and a free key has no queue.
  if call('EXISTS', unpack(KEYS, base, base + n - 1)) == 0 then
    local fence = next_fence()
    local lease = owner .. '|' .. digits(fence)
    for i = base, base + n - 1 do
      call('SET', KEYS[i], lease, 'PX', ttl)
    end
    return fence
  end
  local taken, first, mine, fence = find_taken(base, n, owner)
  if first then
    return nil, taken, first, mine
  end
  -- A repeat, whose first answer was lost, or a lease that was handed over is not granted twice, but its time begins
  -- anew: the caller counts from now.
  if mine == n then
    extend(base, n, owner, tonumber(ttl))
  else
    fence = next_fence()
    for i = base, base + n - 1 do
      write(KEYS[i], owner, digits(fence), ttl, call('EXISTS', KEYS[i + n]) == 1)
    end
  end
  return fence
end

-- A waiter holds nothing: what was handed over goes back before it joins the next queue.
local function join_queue(base, n, entry, owner, first, lease, mine, queue_max, again)
  local lease_key, queue_key = KEYS[base + first], KEYS[base + n + first]
  local was_queued = 0
  if again and leave_queue(base, n, entry, first) > 0 then
    was_queued = 1
  end
  if mine > 0 then
    was_queued = 1
    give_back(base, n, owner)
  end
  if call('LPOS', queue_key, entry) then
    was_queued = 1
  else
    local length = call('RPUSH', queue_key, entry)
    if length > queue_max then
      call('RPOP', queue_key)
      return -1, was_queued
    elseif length == 1 then
      call('PEXPIRE', queue_key, QUEUE_MS)
    end
  end
  local time = ends_at(lease)
  if not time then
    time = clock() + call('PTTL', lease_key) * 1000
    call('SET', lease_key, lease .. '|' .. digits(time), 'PX', QUEUE_MS)
  end
  return math.max(0, math.ceil((time - clock()) / 1000)), was_queued
end

local function refusal(taken, ms, was_queued)
  local answer = {ms, clock(), was_queued}
  for _, i in ipairs(taken) do
    answer[#answer + 1] = i
  end
  return answer
end

local word, base = 2, 2
while word <= #ARGV do
  local verb, n, owner = ARGV[word], tonumber(ARGV[word + 1]), ARGV[word + 2]
  local answer
  if verb == 'a' then
    local fence, taken = take(base, n, owner, ARGV[word + 3])
    answer = fence or refusal(taken, 0, 0)
    word = word + 4
  elseif verb == 'r' then
    answer = give_back(base, n, owner)
    word = word + 3
  elseif verb == 'x' then
    answer = extend(base, n, owner, tonumber(ARGV[word + 3]))
    word = word + 4
  elseif verb == 'w' then
    local ttl, channel, queue_max, again = ARGV[word + 3], ARGV[word + 4], tonumber(ARGV[word + 5]), ARGV[word + 6] == '1'
    local entry = owner .. '|' .. ttl .. '|' .. channel
    local fence, taken, lease, mine = take(base, n, owner, ttl)
    if not fence then
      answer = refusal(taken, join_queue(base, n, entry, owner, taken[1], lease, mine, queue_max, again))
    else
      if again then
        leave_queue(base, n, entry)
      end
      answer = fence
    end
    word = word + 7
  else
    leave_queue(base, n, owner .. '|' .. ARGV[word + 3] .. '|' .. ARGV[word + 4])
    answer = give_back(base, n, owner)
    word = word + 5
  end
  answers[#answers + 1] = answer
  base = base + 2 * n
end

if last_fence then
  call('SET', KEYS[1], digits(last_fence))
end
answers[#answers + 1] = handed
return answers
