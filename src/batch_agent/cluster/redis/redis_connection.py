"""Connection to a Redis server, with retries while the server is unavailable. Imports redis-py, which is an extra."""

import asyncio
import builtins
import itertools
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from ...core.errors import StoreError
from ...core.safe_text import public_url
from ...schedule.retry import Backoff
from .lua.common import NAME_THE_PRIMARY, REQUIRED_SERVER, USE_INSTEAD_OF_CLUSTER, LuaScript
from .redis_pool import close_pool, open_pool

_log = logging.getLogger("batch_agent")

T = TypeVar("T")
Argument = bytes | str | int

_RESPONSE_TIMEOUT = 20.0
"""Seconds to wait for the response to any command. Blocking commands use shorter waits."""
_MAX_IN_FLIGHT = 16
"""Maximum number of non-blocking commands in flight. Further ones queue here instead of in the server."""
_BACKOFF = Backoff(first=0.02, ceiling=1.0)
_QUIET_TRIES = 5
"""Tries before an outage is reported. They take about a second, in which a server can restart."""

_TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError, ClusterDownError, ReadOnlyError, TryAgainError, OSError)
_RESET = "reset by peer"
"""Error of a connection without TLS that a server with TLS closes."""
_TLS_ADVICE = {
    "Hostname mismatch": "Use the host name that its certificate has.",
    "IP address mismatch": "Use the host name that its certificate has.",
    "has expired": "Its certificate has expired: renew it.",
    "CERTIFICATE_VERIFY_FAILED": "If it has a certificate of your own authority, add ?ssl_ca_certs=/path/ca.pem.",
    "CERTIFICATE_REQUIRED": "It asks for a client certificate: ?ssl_certfile=/path/cert.pem&ssl_keyfile=/path/key.pem.",
    "UNKNOWN_CA": "It does not trust the certificate of ssl_certfile.",
    "KEY_VALUES_MISMATCH": "The key of ssl_keyfile does not belong to the certificate of ssl_certfile.",
    "NO_CERTIFICATE": "The file of ssl_ca_certs has no certificate.",
    "WRONG_VERSION_NUMBER": "It may not expect TLS at this port: use redis://, or the port with TLS.",
}
_DENIED_IN_SCRIPT = "ACL failure in script"
_TRANSIENT_PREFIXES = ("BUSY ", "NOREPLICAS", "UNBLOCKED", "MASTERDOWN")


class RedisConnection:
    """Sends commands, and repeats them if their outcome is unknown, so they must be idempotent. Raises StoreError:
    immediately if a retry cannot help, otherwise after `retry_seconds`."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        """Raises SpecError for an invalid URL."""
        self.display_url = public_url(url)
        self._retry_seconds = retry_seconds
        self._pool = open_pool(url)
        self._redis = Redis(connection_pool=self._pool)
        self._execute: Callable[..., Awaitable[Any]] = self._redis.execute_command
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._is_away = False

    async def aclose(self) -> None:
        await close_pool(self._pool)

    async def call(self, *command: Argument, retry_seconds: float | None = None) -> Any:
        patience = _RESPONSE_TIMEOUT if retry_seconds is None else min(_RESPONSE_TIMEOUT, retry_seconds)

        async def attempt(_: int) -> Any:
            async with self._in_flight:
                return await self._send(*command, timeout=patience)

        return await self._retried(attempt, retry_seconds)

    async def wait(self, *command: Argument) -> Any:
        """Runs a command that blocks in the server."""
        return await self._retried(lambda _: self._send(*command), None)

    async def pipeline(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Sends commands in one round trip, which is not atomic."""
        queued = list(commands)

        async def attempt(_: int) -> list[Any]:
            async with (
                self._in_flight,
                asyncio.timeout(_RESPONSE_TIMEOUT),
                self._redis.pipeline(transaction=False) as pipe,
            ):
                for command in queued:
                    pipe.execute_command(*command)
                replies: list[Any] = await pipe.execute(raise_on_error=False)  # its error would show the keys
            for reply in replies:
                if isinstance(reply, RedisError):
                    raise reply
            return replies

        return await self._retried(attempt, None)

    async def run(
        self,
        script: LuaScript,
        key: str,
        arguments: Callable[[bool], Sequence[Argument]],
        first: Sequence[Argument] | None = None,
    ) -> Any:
        """Runs a script. `arguments`: called with whether the script may have run before. `first`: a cheaper command
        with the same effect, for the first attempt."""

        async def attempt(tries: int) -> Any:
            values = arguments(tries > 0)
            async with self._in_flight:
                if first is not None and tries == 0:
                    return await self._send(*first)
                try:
                    return await self._send("EVALSHA", script.sha, 1, key, *values)
                except NoScriptError:
                    return await self._send("EVAL", script.text, 1, key, *values)

        return await self._retried(attempt, None)

    async def _send(self, *command: Argument, timeout: float = _RESPONSE_TIMEOUT) -> Any:
        async with asyncio.timeout(timeout):
            return await self._execute(*command)

    async def _retried(self, attempt: Callable[[int], Awaitable[T]], retry_seconds: float | None) -> T:
        retry_seconds = self._retry_seconds if retry_seconds is None else retry_seconds
        now = asyncio.get_running_loop().time
        began: float | None = None
        for tries in itertools.count():
            try:
                result = await attempt(tries)
                self._report_return()
                return result
            except (RedisError, OSError) as error:
                began = now() if began is None else began
                left = began + retry_seconds - now()
                failure = self._failure(error)
                if failure is not None or left <= 0:
                    raise failure or self._unreachable(error, retry_seconds) from error
                if tries >= _QUIET_TRIES or isinstance(error, builtins.TimeoutError):
                    self._report_outage(error, left)
                await self._reconnect_after_failover(error)
            await asyncio.sleep(min(left, _BACKOFF.jittered(tries, random.random())))  # noqa: S311
        raise AssertionError("unreachable")

    def _report_outage(self, error: Exception, left: float) -> None:
        """Reports an outage once for all waiting commands."""
        if not self._is_away:
            self._is_away = True
            _log.warning(
                "Redis at %s does not answer (%s): waiting for it for up to %.0f s.",
                self.display_url,
                str(error) or "no answer",
                left,
            )

    def _report_return(self) -> None:
        if self._is_away:
            self._is_away = False
            _log.warning("Redis at %s answers again.", self.display_url)

    async def _reconnect_after_failover(self, error: Exception) -> None:
        """Drops the connections after a failover, because they lead to a read-only replica."""
        if isinstance(error, ReadOnlyError):
            await self._pool.disconnect(inuse_connections=False)

    def _unreachable(self, error: Exception, retry_seconds: float) -> StoreError:
        if isinstance(error, ReadOnlyError):
            return StoreError(
                f"Redis at {self.display_url} was a read-only replica for {retry_seconds:g} s. {NAME_THE_PRIMARY}"
            )
        return StoreError(
            f"Redis at {self.display_url} could not be reached for {retry_seconds:g} s ({str(error) or 'no answer'}). "
            "Check that it is running and reachable from here; stored data is available when it comes back."
            f"{self._advice(error)}"
        )

    def _advice(self, error: Exception) -> str:
        if self.display_url.startswith(("redis://", "redis+sentinel://")):
            return " If it expects TLS, use rediss://." if _RESET in str(error) else ""
        is_silent = isinstance(error, TimeoutError | builtins.TimeoutError)
        return " If it does not expect TLS, use redis://." if is_silent and self.display_url[:6] == "rediss" else ""

    def _failure(self, error: Exception) -> StoreError | None:
        """Returns None if a retry may help."""
        reason = _reason(error)
        return None if reason is None else StoreError(f"Redis at {self.display_url} {reason}")


def _reason(error: Exception) -> str | None:
    """The problem and its remedy if waiting would not help, else None. The class names are redis-py's."""
    text = str(error)
    match error:
        case AuthenticationError() | AuthorizationError():
            return f"rejected the credentials ({text}). Check user and password: redis://USER:PASSWORD@HOST:PORT."
        case _ if isinstance(error, NoPermissionError) or text.startswith(_DENIED_IN_SCRIPT):
            return f"denied a command ({text}). Grant this user the keys batch-agent:* and all commands."
        case OutOfMemoryError():
            return (
                "is out of memory (maxmemory). Increase it, or delete old runs. Stored data is safe; run again with "
                "the same store to continue."
            )
        case InvalidResponse():
            return f"does not respond like a Redis server ({text}). Check host and port."
        case AskError() | ClusterCrossSlotError():
            return f"is a node of a Redis Cluster ({text}). {USE_INSTEAD_OF_CLUSTER}"
        case ConnectionError() if isinstance(error.__context__, ssl.SSLError):
            return f"did not complete the TLS handshake ({error.__context__}). {_tls_advice(str(error.__context__))}"
        case _ if isinstance(error, _TRANSIENT) or text.startswith(_TRANSIENT_PREFIXES):
            return None
        case ResponseError() if text.startswith("MISCONF"):
            return (
                f"cannot write to its disk ({text}). Free disk space. Stored data is safe; run again with the same "
                "store to continue."
            )
        case ResponseError() if "DB index" in text:
            return f"has no such database ({text}). The number comes after the port: redis://HOST:PORT/0."
        case _:
            return f"rejected a command ({text}). {REQUIRED_SERVER}"


def _tls_advice(problem: str) -> str:
    return next(
        (advice for name, advice in _TLS_ADVICE.items() if name in problem), "Check rediss:// and certificates."
    )
