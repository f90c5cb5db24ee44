"""A run's hub in an actor of a Ray cluster, for a run without a server of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from ..core.agent_config import Job
from ..core.coordinator import Completion, Cursor, Document, Lease, Updates, Write
from ..core.errors import BatchAgentError, StoreError
from ..core.facts import Fact
from ..core.requests import Usage
from ..store.codec import decode_job, encode_job
from .actor_calls import answer_while_wanted, first_line

_PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds between calls of an actor that cannot be reached."""
_MOST_STORIES = 1_000

Find = Callable[[], Awaitable[Any]]


class RayCoordinator:
    """The hub, as a caller or a worker in another process sees it: each method is one call of the actor."""

    def __init__(self, find: Find, seat: str | None = None) -> None:
        """`find` gives the actor, when it is there. `seat`: that of a worker; one that Ray starts anew has the seat of
        the one before it."""
        self._find = find
        self._seat = seat
        self._actor: Any = None
        self._stories: dict[str, tuple[Fact, ...]] = {}
        """Of agents whose end was in the news, until somebody wants to know."""

    async def open(self) -> None:
        self._actor = await self._find()

    async def aclose(self) -> None:
        """The actor is closed by whoever made it."""

    async def delete_run(self) -> None:
        await self._ask("delete_run")

    async def read(self, name: str) -> Document:
        document: Document = await self._ask("read", name)
        return document

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        return bool(await self._ask("compare_and_set", name, old, new))

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        plain = [decode_job(encode_job(job)) for job in jobs]  # an input may be of a class that nodes do not have
        ended: dict[str, Completion] = await self._ask("submit", plain, retry_failed=retry_failed)
        return ended

    async def pending_count(self) -> int:
        return int(await self._ask("pending_count"))

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float) -> list[Lease]:
        leases: list[Lease] = await self._ask("lease", worker, max_jobs, ttl=ttl, wait=wait)
        return leases

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        lost: frozenset[str] = await _answered(lambda: self._actor.renew.remote(self._seat, worker, dict(tokens), ttl))
        return lost

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        await self._ask("release", worker, dict(tokens))

    async def leave(self, worker: str) -> None:
        await self._ask("leave", worker)

    async def facts(self, key: str) -> tuple[Fact, ...]:
        known = self._stories.pop(key, None)
        facts: tuple[Fact, ...] = await self._ask("facts", key) if known is None else known
        return facts

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: frozenset[str] = await self._ask("write", worker, number, list(writes))
        return refused

    async def spent(self) -> Usage:
        usage: Usage = await self._ask("spent")
        return usage

    async def position(self, *, completions: bool = True) -> Cursor:
        cursor: Cursor = await self._ask("position")
        return cursor

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        news, stories = await _answered(lambda: self._actor.poll.remote(self._seat, after, wait))
        self._stories.update(stories)
        for key in list(islice(self._stories, max(0, len(self._stories) - _MOST_STORIES))):
            del self._stories[key]
        gathered: Updates = news
        return gathered

    async def publish(self, data: bytes) -> None:
        await _answered(lambda: self._actor.publish.remote(self._seat, data))

    async def claim(self, name: str, worker: str) -> bytes | bool:
        claimed: bytes | bool = await self._ask("claim", name, worker)
        return claimed

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        await self._ask("complete_call", name, worker, outcome, ttl=ttl)

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        return float(await self._ask("reserve_rate", name, interval=interval, ahead=ahead))

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        return await _answered(lambda: self._actor.ask.remote(method, args, options))


async def _answered(call: Callable[[], Any]) -> Any:
    """Raises what the hub raised, and StoreError when it cannot be reached."""
    try:
        for pause in _PAUSES:
            try:
                return await answer_while_wanted(call())
            except ActorUnavailableError:
                await asyncio.sleep(pause)
        return await answer_while_wanted(call())
    except RayTaskError as error:
        if isinstance(error.cause, BatchAgentError):
            raise error.cause from None
        raise StoreError(f"The hub of the run failed: {error.cause!r}. {_GO_ON}") from error
    except (RayError, ConnectionError) as error:
        raise StoreError(
            f"The hub of the run, an actor on the caller's node, is gone: {first_line(error)} {_GO_ON}"
        ) from error


_GO_ON = "Run again, with the same checkpoint_dir, to go on from what was stored."
