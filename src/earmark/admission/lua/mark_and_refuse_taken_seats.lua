-- Admits or refuses requests for seats. One script carries many calls, and each is decided in turn.
--
-- KEYS       for each call the keys of its seats; on a cluster all of one event, which share a slot
-- ARGV[1]    ttl_ms: how long a key may live, at most
-- ARGV[2..]  the calls, one after the other; n is how many seats the call names, token is a number below 2^39, whose
--            lower 27 bits name the request and whose upper 12 are a hash of the buyer:
--   "a" n token               admit: mark all n as in flight, or none
--   "s" n token end_ms owner  turn into hints: what the token has in flight becomes a hint of the owner (a token too,
--                             with the hash of the buyer whose seats these are), and ends end_ms after it was admitted
--   "l" n token               remove marks: what the token has in flight
--   "d" n                     remove hints, of any token
-- Returns one answer per call:
--   a          0 if admitted; else one number per seat: 0 if it is free or the request's own, token * 8192 + ms for the
--              hint of that token and the time it has left, and the same below zero if that token is in flight
--   s, l, d    0
--
-- A key is the string "f" .. token while its request is in flight, and "h" .. token as a hint. Anything else under such
-- a name, and any key that would outlive ttl_ms (because it has no end, or because the server's clock went back), is
-- ignored: the next request overwrites it.

local KEYS, ARGV, call, byte, sub = KEYS, ARGV, redis.call, string.byte, string.sub
local TTL = tonumber(ARGV[1])
local OWNER = 8192
local REQUESTS = 134217728
local FLIGHT, HINT = byte('f'), byte('h')
local answers = {}

local function values(base, n)
  if n == 1 then
    return call('MGET', KEYS[base])
  end
  return call('MGET', unpack(KEYS, base, base + n - 1))
end

-- How long a key still lives, in milliseconds; nil if it should not live at all.
local function left_of(key)
  local left = call('PTTL', key)
  if left >= 0 and left <= TTL then
    return left > 0 and left or 1
  end
end

-- The mark or hint on a seat, as the answer says it; 0 if there is none, and nil if it is the request's own.
local function obstacle(key, value, request)
  local kind, owner = byte(value), tonumber(sub(value, 2))
  if not owner or (kind ~= HINT and kind ~= FLIGHT) then
    return 0
  end
  if owner % REQUESTS == request then
    return nil
  end
  local left = left_of(key)
  if not left then
    return 0
  end
  return (kind == HINT and 1 or -1) * (owner * OWNER + left)
end

local function admit(base, n, token)
  local flight, request = 'f' .. token, tonumber(token) % REQUESTS
  local found, busy, own = values(base, n), nil, nil
  for i = 1, n do
    local value = found[i]
    if value then
      local said = obstacle(KEYS[base + i - 1], value, request)
      if not said then
        own = own or {}
        own[i] = true
      elseif said ~= 0 then
        if not busy then
          busy = {}
          for j = 1, n do
            busy[j] = 0
          end
        end
        busy[i] = said
      end
    end
  end
  if busy then
    return busy
  end
  for i = 1, n do
    -- The same request again, whose first answer was lost: its time began when it first came.
    if not (own and own[i]) then
      call('SET', KEYS[base + i - 1], flight, 'PX', TTL)
    end
  end
  return 0
end

local function turn_into_hints(base, n, token, end_ms, owner)
  local flight, found = 'f' .. token, values(base, n)
  for i = 1, n do
    if found[i] == flight then
      local key = KEYS[base + i - 1]
      -- Counted from the admission and not from now: a call that arrives late makes no hint live longer.
      local left = end_ms - TTL + (left_of(key) or 0)
      if left >= 1 then
        call('SET', key, 'h' .. owner, 'PX', left < TTL and left or TTL)
      else
        call('DEL', key)
      end
    end
  end
end

local function remove_marks(base, n, token)
  local flight, found = 'f' .. token, values(base, n)
  for i = 1, n do
    if found[i] == flight then
      call('DEL', KEYS[base + i - 1])
    end
  end
end

local function remove_hints(base, n)
  local found = values(base, n)
  for i = 1, n do
    if found[i] and byte(found[i]) == HINT then
      call('DEL', KEYS[base + i - 1])
    end
  end
end

local word, base = 2, 1
while word <= #ARGV do
  local verb, n = ARGV[word], tonumber(ARGV[word + 1])
  local answer = 0
  if verb == 'a' then
    answer = admit(base, n, ARGV[word + 2])
    word = word + 3
  elseif verb == 's' then
    turn_into_hints(base, n, ARGV[word + 2], tonumber(ARGV[word + 3]), ARGV[word + 4])
    word = word + 5
  elseif verb == 'l' then
    remove_marks(base, n, ARGV[word + 2])
    word = word + 3
  else
    remove_hints(base, n)
    word = word + 2
  end
  answers[#answers + 1] = answer
  base = base + n
end

return answers
