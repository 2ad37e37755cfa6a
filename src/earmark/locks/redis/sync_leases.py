"""Leases in Redis for plain threads, without an event loop: the same script over redis-py's blocking connections.

It never waits in the queue: `earmark.locks.sync_locks` does that in its event loop.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis import Sentinel
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from earmark.locks.backend_protocol import Grant
from earmark.locks.errors import LockBusy, LocksUnavailable
from earmark.locks.redis.encode_and_decode_script_calls import (
    SHA,
    SOURCE,
    RedisKeys,
    ScriptCall,
    frame,
    is_doubtful,
    milliseconds,
    owner_of,
    unheard_release,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from earmark.locks.backend_protocol import Claim
    from earmark.locks.circuit_breaker import Breaker


class SyncRedisLeases:
    """Leases on one server, or on the primary that Sentinels name."""

    def __init__(self, pool: ConnectionPool, *, name: str, breaker: Breaker, prefix: str, timeout: float) -> None:
        self.name = name
        self._pool = pool
        self._breaker = breaker
        self._names = RedisKeys(prefix)
        self._timeout = timeout
        self._idle: list[Any] = []
        self._guard = threading.Lock()

    def acquire(self, claim: Claim) -> Grant:
        """All of the keys or none, at once."""
        began = time.monotonic()
        names = self._names.of(claim.keys)
        call = ScriptCall(names, ("a", len(claim.keys), owner_of(claim), milliseconds(claim.ttl)))
        try:
            answer = self._call(call)
        except BaseException:
            self._take_back(claim, names)
            raise
        if isinstance(answer, int):
            return Grant(claim, self, answer, began + claim.ttl)
        raise LockBusy(keys=tuple(claim.keys[i] for i in answer[3:]))

    def release(self, grant: Grant) -> bool:
        """Compare and delete, and hand over to the first waiter in the queue."""
        claim = grant.claim
        return bool(self._call(ScriptCall(self._names.of(claim.keys), ("r", len(claim.keys), owner_of(claim)))))

    def extend(self, grant: Grant, *, ttl: float) -> bool:
        """Extend the lease if its owner still has it; sets `grant.until`."""
        claim = grant.claim
        began = time.monotonic()
        words = ("x", len(claim.keys), owner_of(claim), milliseconds(ttl))
        if not self._call(ScriptCall(self._names.of(claim.keys), words)):
            return False
        grant.until = max(grant.until, began + ttl)
        return True

    def close(self) -> None:
        """Close all connections, idle and in use."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()
        self._pool.disconnect()

    def _call(self, call: ScriptCall) -> Any:
        if not self._breaker.allow():
            raise LocksUnavailable(
                because=f"Redis did not answer lately; next try in {self._breaker.retry_after_seconds:.1f} s"
            )
        try:
            answer, repeated = self._send(call)
        except LocksUnavailable:
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        if repeated and is_doubtful(call, answer):
            raise unheard_release()
        return answer

    def _send(self, call: ScriptCall) -> tuple[Any, bool]:
        """The answer, and whether the call was sent again because a connection broke."""
        arguments = frame(SHA, fence=self._names.fence, channel="", calls=(call,))
        try:
            answers, repeated = self._execute("EVALSHA", *arguments)
        except NoScriptError:
            arguments[0] = SOURCE
            answers, repeated = self._execute("EVAL", *arguments)
        return answers[0], repeated

    def _execute(self, *arguments: Any) -> tuple[Any, bool]:
        breaks, repeated = 0, False
        while True:
            try:
                connection = self._idle.pop()
                fresh = False
            except IndexError:
                connection = self._pool.make_connection()
                fresh = True
                breaks += 1
            try:
                return self._exchange(connection, arguments, fresh=fresh), repeated
            except RedisTimeoutError as error:
                raise LocksUnavailable(because=f"no answer in {self._timeout:g} s") from error
            except (RedisConnectionError, OSError) as error:
                # An idle connection may be to a server that was restarted, and a new one may break once: all calls can
                # be repeated.
                if breaks > 1:
                    raise LocksUnavailable(because=str(error) or type(error).__name__) from error
                repeated = True
            except NoScriptError:
                raise
            except RedisError as error:
                raise LocksUnavailable(because=str(error)) from error

    def _exchange(self, connection: Any, arguments: tuple[Any, ...], *, fresh: bool) -> Any:
        healthy = False
        try:
            if fresh:
                connection.connect()
            connection.send_packed_command([pack_command(arguments)], check_health=False)
            answer = connection.read_response()
            healthy = True
        except (RedisConnectionError, RedisTimeoutError, OSError):
            raise
        except RedisError:
            healthy = True
            raise
        finally:
            if healthy:
                self._idle.append(connection)
            else:
                connection.disconnect()
        return answer

    def _take_back(self, claim: Claim, names: tuple[str, ...]) -> None:
        """Release what the call may have taken: its answer is not known. Tried once."""
        if self._breaker.allow():
            try:
                self._send(ScriptCall(names, ("r", len(claim.keys), owner_of(claim))))
            except LocksUnavailable:
                self._breaker.failed()


def one_server(url: str, *, timeout: float) -> ConnectionPool:
    """Connections to the server at a redis://, rediss:// or unix:// address."""
    return ConnectionPool.from_url(url, **_options(timeout))


def by_sentinel(
    watchers: Sequence[tuple[str, int]], service: str, *, timeout: float, options: dict[str, Any]
) -> ConnectionPool:
    """Connections to the primary of a service; the Sentinels are asked for it whenever one is made."""
    patience = timeout / (len(watchers) + 1)
    ask = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(list(watchers), sentinel_kwargs=ask, **_options(timeout), **options)
    pool: ConnectionPool = sentinel.master_for(service).connection_pool
    return pool


def _options(timeout: float) -> dict[str, Any]:
    return {
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }
