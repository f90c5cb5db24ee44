"""Coordinator in Redis, which outlives the workers and serves workers on any machine. Needs the extra `redis`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import SpecError, StoreError
from .calls import RedisCallTable
from .documents import RedisDocuments
from .durability_check import warn_if_not_durable
from .facts import RedisFactTable
from .input_record import RedisInputRecord
from .keyspace import RedisKeyspace
from .registration import RUNS, RunRegistration
from .stored_run import StoredRun
from .updates import RedisUpdateStream
from .work_queue import RedisWorkQueue

if TYPE_CHECKING:
    from .redis_connection import RedisConnection

_RETRY_SECONDS = 60.0
_RETRY_SECONDS_AT_OPEN = 10.0
"""Shorter, because the host may be mistyped."""
_PAGE = 1_000


class RedisCoordinator:
    """Coordinator for `store="redis://..."`. All keys of a run begin with `batch-agent:{RUN}:`; values are JSON and
    bytes."""

    is_durable = True

    def __init__(self, url: str, run: str, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        """`retry_seconds`: how long an unreachable server is retried. Raises SpecError."""
        if not run or not set(run).isdisjoint("{}"):
            raise SpecError(f"run_id={run!r} is invalid: it must not be empty or contain braces.")
        self._connection = _connect(url, retry_seconds)
        self.url = self._connection.display_url
        """URL of the server, without a password."""
        self._retry_seconds = retry_seconds
        self._keyspace = keyspace = RedisKeyspace(self._connection, run)
        self._registration = registration = RunRegistration(keyspace)
        self.documents = RedisDocuments(keyspace, registration)
        self.inputs = RedisInputRecord(keyspace, registration)
        self.facts = RedisFactTable(keyspace)
        self.work = RedisWorkQueue(keyspace, registration, self.facts)
        self.updates = RedisUpdateStream(keyspace, registration)
        self.calls = RedisCallTable(keyspace)
        self.stored = StoredRun(keyspace, self.facts)

    async def open(self) -> None:
        try:
            await self._connection.call("PING", retry_seconds=min(self._retry_seconds, _RETRY_SECONDS_AT_OPEN))
            await warn_if_not_durable(self._connection)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def delete_run(self) -> None:
        async for keys in self._keyspace.scan("", _PAGE):
            if keys:
                await self._connection.call("UNLINK", *keys)
        await self._registration.delete()


async def runs_known(url: str, *, retry_seconds: float = _RETRY_SECONDS_AT_OPEN) -> list[str]:
    """Names of the runs on a server, sorted. Raises SpecError and StoreError."""
    connection = _connect(url, retry_seconds)
    try:
        return sorted(run.decode() for run in await connection.call("SMEMBERS", RUNS))
    finally:
        await connection.aclose()


def no_such_run(run: str, url: str, known: Sequence[str]) -> StoreError:
    """The error for an unknown run. `url`: URL of the server, without a password. `known`: the runs that the server
    has."""
    if run in known:
        why = "it is being started, or it ended before its first request"
        return StoreError(f"The run {run!r} at {url} has no plan: {why}.")
    return StoreError(f"There is no run {run!r} at {url}. {existing_runs(known)}")


def existing_runs(known: Sequence[str]) -> str:
    """Hint that lists the existing runs."""
    return f"Existing runs: {', '.join(known)}." if known else "The server has no runs."


def _connect(url: str, retry_seconds: float) -> "RedisConnection":
    try:
        from .redis_connection import RedisConnection
    except ImportError as error:
        raise SpecError("store='redis://...' needs an extra: pip install 'batch-agent[redis]'.") from error
    return RedisConnection(url, retry_seconds)
