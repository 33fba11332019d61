"""The Lua scripts behind RedisStateStore: each call is one script, so each call is atomic.

Keys, all with one {namespace} so that a cluster keeps them in one slot:
    meta     hash: format, revision, compacted        values   hash: key → value, live keys only
    names    zset, all scores 0: live keys in order   revs     zset: key → revision, live keys and tombstones
    expiry   zset: key → when it expires, in ms       dead     zset: key → revision, tombstones only
    writes   hash: key → the token of its last write or delete, so that one sent twice is made once
Revisions are microseconds, below 2^53, hence exact as scores. Time is the server's, one clock for all.
"""

from __future__ import annotations

KEY_NAMES = ("meta", "values", "names", "revs", "expiry", "dead", "writes")
FORMAT_VERSION = 1
SWEEP_LIMIT = 500  # expired keys buried per call: bounds how long a script may hold the server

_PRELUDE = f"""
local META, VALUES, NAMES, REVS, EXPIRY, DEAD, WRITES = unpack(KEYS)
local MAX_DEAD = tonumber(ARGV[1])
local t = redis.call('TIME')
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now_ms = math.floor(now_us / 1000)
local function whole(n) return string.format('%.0f', n) end

local format = redis.call('HGET', META, 'format')
if format and tonumber(format) > {FORMAT_VERSION} then
  return redis.error_reply('WEIRFORMAT state has format ' .. format .. ', this program knows {FORMAT_VERSION}')
end

local function head() return tonumber(redis.call('HGET', META, 'revision') or '0') end
local function next_revision()
  local revision = math.max(head() + 1, now_us)
  redis.call('HSET', META, 'revision', whole(revision), 'format', '{FORMAT_VERSION}')
  return revision
end
local function version_of(key)
  if redis.call('HEXISTS', VALUES, key) == 0 then return 0 end
  local expires = redis.call('ZSCORE', EXPIRY, key)
  if expires and tonumber(expires) <= now_ms then return 0 end
  return tonumber(redis.call('ZSCORE', REVS, key))
end
local function bury(key)
  local revision = whole(next_revision())
  redis.call('HDEL', VALUES, key)
  redis.call('ZREM', NAMES, key)
  redis.call('ZREM', EXPIRY, key)
  redis.call('ZADD', REVS, revision, key)
  redis.call('ZADD', DEAD, revision, key)
end
local function forget()
  local excess = redis.call('ZCARD', DEAD) - MAX_DEAD
  if excess <= 0 then return end
  local oldest = redis.call('ZRANGE', DEAD, 0, excess - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    redis.call('ZREM', REVS, oldest[i])
    redis.call('HDEL', WRITES, oldest[i])
  end
  redis.call('HSET', META, 'compacted', whole(tonumber(oldest[#oldest])))
  redis.call('ZREMRANGEBYRANK', DEAD, 0, excess - 1)
end
local function sweep()
  local gone = redis.call('ZRANGEBYSCORE', EXPIRY, '-inf', now_ms, 'LIMIT', 0, {SWEEP_LIMIT})
  for _, key in ipairs(gone) do bury(key) end
  if #gone > 0 then forget() end
end
"""

# ARGV: max_dead, key → {} or {value, version}
GET = (
    _PRELUDE
    + """
local version = version_of(ARGV[2])
if version == 0 then return {} end
return {redis.call('HGET', VALUES, ARGV[2]), version}
"""
)

# ARGV: max_dead, key, token, expected or '', value, ttl in ms or '' → {1, version} or {0, current version}
WRITE = (
    _PRELUDE
    + """
sweep()
local key, token, expected, value, ttl_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if redis.call('HGET', WRITES, key) == token then return {1, tonumber(redis.call('ZSCORE', REVS, key))} end
local current = version_of(key)
if expected ~= '' and tonumber(expected) ~= current then return {0, current} end
local revision = next_revision()
redis.call('HSET', VALUES, key, value)
redis.call('ZADD', NAMES, 0, key)
redis.call('ZADD', REVS, whole(revision), key)
redis.call('ZREM', DEAD, key)
redis.call('HSET', WRITES, key, token)
if ttl_ms == '' then
  redis.call('ZREM', EXPIRY, key)
else
  redis.call('ZADD', EXPIRY, whole(now_ms + tonumber(ttl_ms)), key)
end
return {1, revision}
"""
)

# ARGV: max_dead, key, token, expected or '' → {1, whether it existed} or {0, current version}
DELETE = (
    _PRELUDE
    + """
sweep()
local key, token, expected = ARGV[2], ARGV[3], ARGV[4]
if redis.call('HGET', WRITES, key) == token then return {1, 1} end
local current = version_of(key)
if expected ~= '' and tonumber(expected) ~= current then return {0, current} end
if current == 0 then return {1, 0} end
bury(key)
redis.call('HSET', WRITES, key, token)
forget()
return {1, 1}
"""
)

# ARGV: max_dead, lowest bound, highest bound, limit → {revision, 1 if there is more, key, value, version, …}
LIST = (
    _PRELUDE
    + """
local limit = tonumber(ARGV[4])
local keys = redis.call('ZRANGEBYLEX', NAMES, ARGV[2], ARGV[3], 'LIMIT', 0, limit + 1)
local answer = {head(), #keys > limit and 1 or 0}
for i = 1, math.min(#keys, limit) do
  local version = version_of(keys[i])
  if version ~= 0 then
    answer[#answer + 1] = keys[i]
    answer[#answer + 1] = redis.call('HGET', VALUES, keys[i])
    answer[#answer + 1] = version
  end
end
return answer
"""
)

# ARGV: max_dead, prefix, since, limit → {revision, seen, compacted, key, version, 1 if live, value, …}
CHANGES = (
    _PRELUDE
    + """
sweep()
local prefix, limit = ARGV[2], tonumber(ARGV[4])
local found = redis.call('ZRANGEBYSCORE', REVS, '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local answer = {head(), head(), tonumber(redis.call('HGET', META, 'compacted') or '0')}
if #found == 2 * limit then answer[2] = tonumber(found[#found]) end
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #prefix) == prefix then
    local value = redis.call('HGET', VALUES, found[i])
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = tonumber(found[i + 1])
    answer[#answer + 1] = value and 1 or 0
    answer[#answer + 1] = value or ''
  end
end
return answer
"""
)
