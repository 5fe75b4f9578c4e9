"""The list of seen messages in Redis, which receivers on several machines share.

What it is: three keys of one hash slot: a sorted set of handled keys by time, a hash of claims, a hash of owners; each operation is one
Lua script, which Redis runs alone (https://redis.io/docs/latest/develop/interact/programmability/eval-intro/). The server's clock is used.
What it is not: more durable than the server is configured to be: with `appendonly yes` and `appendfsync always` a handled message survives
a power cut; with the default `everysec` the messages of the last second may be handled again.

Invariants: those of `isthmus.client.seen.store`, as far as the server keeps acknowledged writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from isthmus.client.seen.store import Bounds, Keys, SeenStoreError, Swept, Verdict
from isthmus.extra import require

__all__ = ["RedisSeen"]

_TIMEOUT_SECONDS = 5.0
_ANY = "in Redis"
_FORM = "redis://[user:password@]host[:port][/database], with %2F for a / in a password"
_NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000);"
_COMMON = """
local function is_handled(key)
  local at = redis.call('ZSCORE', KEYS[1], key)
  return at and tonumber(at) >= now - window
end
local function mark(key)
  redis.call('HDEL', KEYS[2], key)
  if not is_handled(key) then redis.call('ZADD', KEYS[1], now, key) end
end
"""
# A message is its number of keys, then the keys.
_CLAIM = f"""
{_NOW}
local owner, lease, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
{_COMMON}
redis.call('HSET', KEYS[3], owner, now + lease)
local found, at = {{}}, 4
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local handled, mine, others = false, false, false
  for i = at + 1, at + count do
    local key = ARGV[i]
    if is_handled(key) then handled = true end
    local holder = redis.call('HGET', KEYS[2], key)
    if holder then
      if holder == owner then mine = true
      else
        local till = redis.call('HGET', KEYS[3], holder)
        if till and tonumber(till) >= now then others = true end
      end
    end
  end
  local verdict = 'new'
  if handled then verdict = 'handled' elseif others then verdict = 'others' elseif mine then verdict = 'mine' end
  for i = at + 1, at + count do
    if handled then mark(ARGV[i]) elseif not others then redis.call('HSET', KEYS[2], ARGV[i], owner) end
  end
  found[#found + 1] = verdict
  at = at + count + 1
end
return found
"""
_HANDLE = f"""
{_NOW}
local window = tonumber(ARGV[1])
{_COMMON}
local found, at = {{}}, 2
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local fresh = 1
  for i = at + 1, at + count do if is_handled(ARGV[i]) then fresh = 0 end end
  for i = at + 1, at + count do mark(ARGV[i]) end
  found[#found + 1] = fresh
  at = at + count + 1
end
return found
"""
_RELEASE = """
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[1] then redis.call('HDEL', KEYS[2], ARGV[i]) end
end
"""
_RENEW = f"{_NOW} redis.call('HSET', KEYS[3], ARGV[1], now + tonumber(ARGV[2]))"
# Claims of expired owners are few and are found by a scan; one call at a time reads all of them.
_DROP = """
local function drop(owners)
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    if owners[all[i + 1]] then redis.call('HDEL', KEYS[2], all[i]) end
  end
  for owner in pairs(owners) do redis.call('HDEL', KEYS[3], owner) end
end
"""
_RETIRE = f"{_DROP} drop({{[ARGV[1]] = true}})"
_SWEEP = f"""
{_NOW}
{_DROP}
local owners, gone = redis.call('HGETALL', KEYS[3]), {{}}
for i = 1, #owners, 2 do
  if tonumber(owners[i + 1]) < now then gone[owners[i]] = true end
end
if next(gone) then drop(gone) end
local by_age = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%d', now - tonumber(ARGV[1])))
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
local by_count = 0
if over > 0 then by_count = redis.call('ZREMRANGEBYRANK', KEYS[1], 0, over - 1) end
return {{by_age, by_count}}
"""


class RedisSeen:
    """A list of seen messages in Redis; needs the extra `redis`.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS.
        name: name of the list: receivers with the same name share it; one for each entity that is read.
        bounds: bounds of the list.
        client: a client of redis-py to use instead of one made from `url`.

    Raises:
        MissingExtraError: redis-py is not installed.
        SeenStoreError: the URL is invalid.
    """

    def __init__(self, url: str, name: str, bounds: Bounds | None = None, client: Any = None) -> None:
        self.bounds = bounds or Bounds()
        self._shown = _without_password(url)
        if client is None:
            require("redis", f"the list of seen messages at {self._shown}")
            import redis

            try:
                client = redis.Redis.from_url(
                    url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS
                )
            except (ValueError, TypeError):  # their texts quote the invalid part, e.g. a password as a port
                raise SeenStoreError(_ANY, f"it is no URL of a Redis: {_FORM}") from None
        self._client = client
        # Redis Cluster chooses the slot by the part in braces: scripts need all their keys in one slot.
        self._keys = [f"isthmus:{{{name}}}:{kind}" for kind in ("handled", "claim", "owner")]
        texts = (_CLAIM, _HANDLE, _RELEASE, _RENEW, _RETIRE, _SWEEP)
        scripts = [client.register_script(text) for text in texts]
        self._claim, self._handle, self._release, self._renew, self._retire, self._sweep = scripts

    def claim(self, messages: Sequence[Keys], owner: str) -> list[Verdict]:
        found = self._run(self._claim, owner, self.bounds.lease_ms, self.bounds.window_ms, *_flat(messages))
        # Text where the application's client has `decode_responses`.
        return [Verdict(each.decode() if isinstance(each, bytes) else each) for each in found]

    def handle(self, messages: Sequence[Keys], owner: str) -> list[bool]:
        return [bool(each) for each in self._run(self._handle, self.bounds.window_ms, *_flat(messages))]

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        self._run(self._release, owner, *(key for keys in messages for key in keys))

    def renew(self, owner: str) -> None:
        self._run(self._renew, owner, self.bounds.lease_ms)

    def retire(self, owner: str) -> None:
        self._run(self._retire, owner)

    def sweep(self) -> Swept:
        by_age, by_count = self._run(self._sweep, self.bounds.window_ms, self.bounds.max_count)
        return Swept(int(by_age), int(by_count))

    def count(self) -> int:
        with self._errors():
            return int(self._client.zcard(self._keys[0]))

    def close(self) -> None:
        with self._errors():
            self._client.close()

    def _run(self, script: Any, *arguments: Any) -> Any:
        with self._errors():
            return script(keys=self._keys, args=arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import redis

        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise SeenStoreError(self._shown, f"{type(error).__name__}: {error}") from None


def _flat(messages: Sequence[Keys]) -> Iterator[bytes | int]:
    for keys in messages:
        yield len(keys)
        yield from keys


def _without_password(url: str) -> str:
    """The address of a URL without secrets: redis-py also takes a password from the query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return _ANY
    host = f"[{host}]" if ":" in host else host
    # A part of a password with a slash would be in the path.
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{'' if '@' in parts.path else parts.path}"
