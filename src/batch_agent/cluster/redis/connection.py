"""The way to a Redis server that may be away for a while. Imports redis-py: import this only where that is wanted."""

import asyncio
import itertools
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
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

from ...core.errors import SpecError, StoreError
from ...core.safe_text import public_url
from ...schedule.backoff import Backoff
from .durability_check import NEEDED
from .lua_common import LuaScript

T = TypeVar("T")
Argument = bytes | str | int

_ANSWER = 20.0
"""Seconds for the answer to any command; those that wait do so for less."""
_CONNECT = 5.0
_LANES = 16
"""Commands in flight that do not wait for anything: the others queue here, and not in the server."""
_MOST_CONNECTIONS = 1_000
_BACKOFF = Backoff(first=0.02, ceiling=1.0)

_AWAY = (ConnectionError, TimeoutError, BusyLoadingError, ClusterDownError, ReadOnlyError, TryAgainError, OSError)
_AWAY_WORDS = ("BUSY ", "NOREPLICAS", "UNBLOCKED", "MASTERDOWN")


class RedisConnection:
    """Sends commands, again where nobody knows what became of them: they must bear that. Raises StoreError: at once if
    nothing would be better later, else after `patience` seconds."""

    def __init__(self, url: str, patience: float) -> None:
        """Raises SpecError for what is not the URL of a Redis."""
        self.shown = public_url(url)
        self._patience = patience
        self._pool = _pool(url)
        self._redis = Redis(connection_pool=self._pool)
        self._execute: Callable[..., Awaitable[Any]] = self._redis.execute_command
        self._lanes = asyncio.Semaphore(_LANES)

    async def aclose(self) -> None:
        await self._pool.disconnect()

    async def call(self, *command: Argument, patience: float | None = None) -> Any:
        async def attempt(_: int) -> Any:
            async with self._lanes:
                return await self._send(*command)

        return await self._tried(attempt, patience)

    async def wait(self, *command: Argument) -> Any:
        """For a command that waits in the server for something to happen."""
        return await self._tried(lambda _: self._send(*command), None)

    async def together(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """In one trip; others' commands may come between them."""
        listed = list(commands)

        async def attempt(_: int) -> list[Any]:
            async with self._lanes, asyncio.timeout(_ANSWER), self._redis.pipeline(transaction=False) as pipe:
                for command in listed:
                    pipe.execute_command(*command)
                return await pipe.execute()

        return await self._tried(attempt, None)

    async def run(self, script: LuaScript, key: str, arguments: Callable[[bool], Sequence[Argument]]) -> Any:
        """`arguments` is told whether the script may have run before."""

        async def attempt(tries: int) -> Any:
            values = arguments(tries > 0)
            async with self._lanes:
                try:
                    return await self._send("EVALSHA", script.sha, 1, key, *values)
                except NoScriptError:
                    return await self._send("EVAL", script.text, 1, key, *values)

        return await self._tried(attempt, None)

    async def _send(self, *command: Argument) -> Any:
        async with asyncio.timeout(_ANSWER):
            return await self._execute(*command)

    async def _tried(self, attempt: Callable[[int], Awaitable[T]], patience: float | None) -> T:
        patience = self._patience if patience is None else patience
        now = asyncio.get_running_loop().time
        began: float | None = None
        for tries in itertools.count():
            try:
                return await attempt(tries)
            except (RedisError, OSError) as error:
                began = now() if began is None else began
                left = began + patience - now()
                failure = self._failure(error)
                if failure is not None or left <= 0:
                    raise failure or self._gone(error, patience) from error
                await self._look_again(error)
            await asyncio.sleep(min(left, _BACKOFF.jittered(tries, random.random())))  # noqa: S311
        raise AssertionError("it counts for ever")

    async def _look_again(self, error: Exception) -> None:
        """After a failover, the connections lead to a server that only copies."""
        if isinstance(error, ReadOnlyError):
            await self._pool.disconnect(inuse_connections=False)

    def _gone(self, error: Exception, patience: float) -> StoreError:
        return StoreError(
            f"Redis at {self.shown} could not be reached for {patience:g} s ({error}). Check that it runs and can be "
            "reached from here; what was stored before is there when it comes back."
        )

    def _failure(self, error: Exception) -> StoreError | None:
        """None: it may be better later."""
        reason = _reason(error)
        return None if reason is None else StoreError(f"Redis at {self.shown} {reason}")


def _pool(url: str) -> ConnectionPool:
    try:
        parts = parse_url(url)
    except ValueError:  # its message may have a piece of the password in it
        raise SpecError(
            f"{public_url(url)!r} is not the URL of a Redis. Write redis://USER:PASSWORD@HOST:PORT/DATABASE, rediss:// "
            "for a secure one, or unix:///PATH; what is special in a password as %XX."
        ) from None
    options: dict[str, Any] = {
        **parts,
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": None,  # redis-py keeps it with a wait_for, which in Python 3.11 may swallow a cancellation
        "socket_connect_timeout": _CONNECT,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": _MOST_CONNECTIONS,
    }
    return ConnectionPool(**options)


def _reason(error: Exception) -> str | None:
    """What is wrong and what to do, where waiting would not help. The classes are redis-py's."""
    text = str(error)
    match error:
        case AuthenticationError() | AuthorizationError():
            return f"does not let us in ({text}). Check user and password: redis://USER:PASSWORD@HOST:PORT."
        case NoPermissionError():
            return f"does not allow this user what is needed ({text}). Give it the keys batch-agent:* and all commands."
        case OutOfMemoryError():
            return (
                "has no memory left (maxmemory). Give it more, or remove old runs. What was stored before is safe; run "
                "again with the same store to go on."
            )
        case InvalidResponse():
            return f"does not speak as a Redis does ({text}). Check host and port."
        case AskError() | ClusterCrossSlotError():
            return f"is one node of a Redis Cluster ({text}). Use a server of its own, or a proxy before the cluster."
        case ConnectionError() if isinstance(error.__context__, ssl.SSLError):
            return (
                f"and we cannot agree on a secure connection ({error.__context__}). Check rediss:// and certificates."
            )
        case _ if isinstance(error, _AWAY) or text.startswith(_AWAY_WORDS):
            return None
        case ResponseError() if text.startswith("MISCONF"):
            return (
                f"cannot write to its disk ({text}). Make room there. What was stored before is safe; run again with "
                "the same store to go on."
            )
        case ResponseError() if "DB index" in text:
            return f"has no such database ({text}). The number comes after the port: redis://HOST:PORT/0."
        case _:
            return f"refused a command ({text}). {NEEDED}"
