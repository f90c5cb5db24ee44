"""Client of the coordinator in a Ray actor, for runs without a Redis server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from ..core.agent_config import Job
from ..core.coordinator import Completion, Cursor, Document, Lease, RejectedInput, Updates, Write
from ..core.errors import BatchAgentError, StoreError
from ..core.facts import Fact
from ..core.protocols import Prices
from ..core.requests import Usage
from ..store.codec import decode_job, encode_job
from .actor_calls import cancellable_call_result, first_line

_RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry while the actor is unavailable."""
_MAX_HISTORIES = 1_000
"""Histories of completed agents that are kept until they are read."""

Find = Callable[[], Awaitable[Any]]


class RayCoordinator:
    """Coordinator whose methods are calls of a `CoordinatorActor`, for submitters and workers in other processes."""

    is_durable = False

    def __init__(self, find: Find, rank: str | None = None) -> None:
        """`find` returns the actor once it exists. `rank`: number of a worker, which it keeps when Ray restarts it;
        None for a submitter."""
        self._find = find
        self._rank = rank
        self._actor: Any = None
        self._histories: dict[str, tuple[Fact, ...]] = {}
        """Facts of completed agents that came with an update, until they are read."""

    async def open(self) -> None:
        self._actor = await self._find()

    async def aclose(self) -> None:
        """Does nothing: `RayDeployment`, which created the actor, closes it."""

    async def delete_run(self) -> None:
        await self._call("delete_run")

    async def read(self, name: str) -> Document:
        document: Document = await self._call("read", name)
        return document

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        return bool(await self._call("compare_and_set", name, old, new))

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        plain = [decode_job(encode_job(job)) for job in jobs]  # an input may be of a class that nodes do not have
        ended: dict[str, Completion] = await self._call("submit", plain, retry_failed=retry_failed)
        return ended

    async def save_run(self, inputs: Sequence[bytes], prices: Prices | None) -> None:
        await self._call("save_run", inputs, prices)

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        await self._call("reject", rejected)

    async def pending_count(self) -> int:
        return int(await self._call("pending_count"))

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        leases: list[Lease] = await self._call("lease", worker, max_jobs, ttl=ttl, wait=wait, parts=parts)
        return leases

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        lost: frozenset[str] = await _with_retries(
            lambda: self._actor.renew.remote(self._rank, worker, dict(tokens), ttl)
        )
        return lost

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        await self._call("release", worker, dict(tokens))

    async def leave(self, worker: str) -> None:
        await self._call("leave", worker)

    async def facts(self, key: str) -> tuple[Fact, ...]:
        cached = self._histories.pop(key, None)
        facts: tuple[Fact, ...] = await self._call("facts", key) if cached is None else cached
        return facts

    async def fact_lists(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        unknown = [key for key in keys if key not in self._histories]
        if unknown:
            self._histories.update(zip(unknown, await self._call("fact_lists", unknown), strict=True))
        return [self._histories.pop(key) for key in keys]

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: frozenset[str] = await self._call("write", worker, number, list(writes))
        return refused

    async def spent(self) -> Usage:
        usage: Usage = await self._call("spent")
        return usage

    async def position(self, *, completions: bool = True) -> Cursor:
        cursor: Cursor = await self._call("position")
        return cursor

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        received, histories = await _with_retries(lambda: self._actor.poll.remote(self._rank, after, wait))
        self._histories.update(histories)
        for key in list(islice(self._histories, max(0, len(self._histories) - _MAX_HISTORIES))):
            del self._histories[key]
        updates: Updates = received
        return updates

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        await _with_retries(lambda: self._actor.publish.remote(self._rank, data))

    async def claim(self, name: str, worker: str) -> bytes | bool:
        claimed: bytes | bool = await self._call("claim", name, worker)
        return claimed

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        await self._call("complete_call", name, worker, outcome, ttl=ttl)

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        return float(await self._call("reserve_rate", name, interval=interval, ahead=ahead))

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        return bool(await self._call("acquire_permit", name, worker, limit))

    async def release_permit(self, name: str, worker: str) -> None:
        await self._call("release_permit", name, worker)

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return await _with_retries(lambda: self._actor.call_method.remote(method, args, options))


async def _with_retries(call: Callable[[], Any]) -> Any:
    """Result of a call, repeated while the actor is unavailable. Raises what the coordinator raised, and StoreError if
    the actor cannot be reached."""
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
