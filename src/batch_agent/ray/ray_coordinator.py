"""Client of the coordinator in a Ray actor, for runs without a Redis server."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from ..core.agent_config import Job
from ..core.coordinator import (
    CallTable,
    Completion,
    Cursor,
    Documents,
    FactTable,
    InputRecord,
    Updates,
    UpdateStream,
    WorkQueue,
)
from ..core.errors import BatchAgentError, StoreError
from ..core.facts import Fact
from ..core.fast_dataclass import dataclass
from ..store.codec import decode_job, encode_job
from .actor_calls import cancellable_call_result, first_line

P = ParamSpec("P")
T = TypeVar("T")

_RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry while the actor is unavailable."""
_MAX_HISTORIES = 1_000
"""Maximum number of histories of completed agents that are kept until they are read."""

Find = Callable[[], Awaitable[Any]]


class RayCoordinator:
    """Coordinator whose parts call a `CoordinatorActor`, for submitters and workers in other processes."""

    is_durable = False

    def __init__(self, find: Find, rank: str | None = None) -> None:
        """`find`: returns the actor once it exists. `rank`: number of a worker, which it keeps when Ray restarts it;
        None for a submitter."""
        self._actor = actor = _ActorClient(find, rank)
        histories: dict[str, tuple[Fact, ...]] = {}
        self.documents = RayDocuments(actor)
        self.inputs = RayInputRecord(actor)
        self.work = RayWorkQueue(actor)
        self.facts = RayFactTable(actor, histories)
        self.updates = RayUpdateStream(actor, histories)
        self.calls = RayCallTable(actor)

    async def open(self) -> None:
        await self._actor.open()

    async def aclose(self) -> None:
        """Does nothing: `RayDeployment`, which created the actor, closes it."""

    async def delete_run(self) -> None:
        await self._actor.call("delete_run")


class _ActorClient:
    """Calls of the actor, which are repeated while it is unavailable."""

    def __init__(self, find: Find, rank: str | None) -> None:
        self.rank = rank
        self.handle: Any = None
        self._find = find

    async def open(self) -> None:
        self.handle = await self._find()

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of the coordinator in the actor or of one of its parts, for example `documents.read`."""
        return await _with_retries(lambda: self.handle.call_method.remote(method, args, options))


class _Part(Protocol):
    @property
    def actor(self) -> _ActorClient: ...


def _remote(
    part: str, method: Callable[Concatenate[Any, P], Awaitable[T]]
) -> Callable[Concatenate[_Part, P], Coroutine[Any, Any, T]]:
    """A method that calls the same method in the actor."""
    name = f"{part}.{method.__name__}"

    async def call(self: _Part, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = await self.actor.call(name, *args, **options)
        return result

    return call


@dataclass(frozen=True, slots=True)
class RayDocuments:
    """Documents in the actor."""

    actor: _ActorClient

    read = _remote("documents", Documents.read)
    compare_and_set = _remote("documents", Documents.compare_and_set)


@dataclass(frozen=True, slots=True)
class RayInputRecord:
    """Record of inputs in the actor."""

    actor: _ActorClient

    save = _remote("inputs", InputRecord.save)
    reject = _remote("inputs", InputRecord.reject)


@dataclass(frozen=True, slots=True)
class RayWorkQueue:
    """Work queue in the actor."""

    actor: _ActorClient

    pending_count = _remote("work", WorkQueue.pending_count)
    lease = _remote("work", WorkQueue.lease)
    release = _remote("work", WorkQueue.release)
    leave = _remote("work", WorkQueue.leave)

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        plain = [decode_job(encode_job(job)) for job in jobs]  # an input may have a class that nodes do not have
        ended: dict[str, Completion] = await self.actor.call("work.submit", plain, retry_failed=retry_failed)
        return ended

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        actor = self.actor
        lost: frozenset[str] = await _with_retries(lambda: actor.handle.renew.remote(actor.rank, worker, tokens, ttl))
        return lost


@dataclass(frozen=True, slots=True)
class RayFactTable:
    """Facts in the actor."""

    actor: _ActorClient
    histories: dict[str, tuple[Fact, ...]]
    """Facts of completed agents that arrived with an update, kept until they are read."""

    write = _remote("facts", FactTable.write)
    spent = _remote("facts", FactTable.spent)

    async def read(self, key: str) -> tuple[Fact, ...]:
        return (await self.read_many([key]))[0]

    async def read_many(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        unknown = [key for key in keys if key not in self.histories]
        if unknown:
            self.histories.update(zip(unknown, await self.actor.call("facts.read_many", unknown), strict=True))
        return [self.histories.pop(key) for key in keys]


@dataclass(frozen=True, slots=True)
class RayUpdateStream:
    """Updates in the actor, together with the facts of completed agents."""

    actor: _ActorClient
    histories: dict[str, tuple[Fact, ...]]

    position = _remote("updates", UpdateStream.position)

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        actor, histories = self.actor, self.histories
        updates: Updates
        updates, received = await _with_retries(lambda: actor.handle.poll.remote(actor.rank, after, wait))
        histories.update(received)
        for key in list(islice(histories, max(0, len(histories) - _MAX_HISTORIES))):
            del histories[key]
        return updates

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        await _with_retries(lambda: self.actor.handle.publish.remote(self.actor.rank, data))


@dataclass(frozen=True, slots=True)
class RayCallTable:
    """Tool calls in the actor."""

    actor: _ActorClient

    claim = _remote("calls", CallTable.claim)
    complete = _remote("calls", CallTable.complete)
    reserve_rate = _remote("calls", CallTable.reserve_rate)
    acquire_permit = _remote("calls", CallTable.acquire_permit)
    release_permit = _remote("calls", CallTable.release_permit)


async def _with_retries(call: Callable[[], Any]) -> Any:
    """Result of a call, which is repeated while the actor is unavailable. Raises the coordinator's exceptions, and
    StoreError if the actor is unreachable."""
    try:
        for delay in _RETRY_DELAYS:
            try:
                return await cancellable_call_result(call())
            except ActorUnavailableError:
                await asyncio.sleep(delay)
        return await cancellable_call_result(call())
    except RayTaskError as error:
        if isinstance(error.cause, BatchAgentError):
            raise error.cause from None
        raise StoreError(f"The coordinator of the run failed: {error.cause!r}. {_RESUME_HINT}") from error
    except (RayError, ConnectionError) as error:
        raise StoreError(
            f"The coordinator of the run, an actor on the submitter's node, cannot be reached: {first_line(error)} "
            f"{_RESUME_HINT}"
        ) from error


_RESUME_HINT = "Run again, with the same checkpoint_dir, to continue from what was stored."
