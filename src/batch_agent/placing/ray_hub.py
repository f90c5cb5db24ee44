"""A run's hub in an actor of a Ray cluster, for a run without a server of its own."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from ..cluster.local import LocalHub
from ..core.errors import BatchAgentError, SpecError, StoreError
from ..core.facts import Fact
from ..core.hub import Cursor, Document, Ending, Lease, News, Write
from ..core.requests import Usage
from ..core.rules import Job
from ..store.codec import decode_job, encode_job
from ..store.memory import MemoryStore
from ..store.sqlite import SqliteStore
from .ray_calls import answer_while_wanted, first_line

_PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds between calls of an actor that cannot be reached."""

Find = Callable[[], Awaitable[Any]]


class HubActor:
    """Lives on the caller's node, where the checkpoint is, and ends with the caller."""

    def __init__(self, checkpoint_dir: str | None) -> None:
        self._hub = LocalHub(MemoryStore() if checkpoint_dir is None else SqliteStore(Path(checkpoint_dir)))
        self._seats: dict[str, str] = {}
        """Who has each seat now."""
        self._joined: set[str] = set()
        self._asked: Counter[str] = Counter()

    async def open(self, sign: str | None) -> None:
        """`sign`: a file that the caller has left, for whoever is on another machine to see whether both see the same
        folder. Raises SpecError and StoreError."""
        if sign is not None and not await asyncio.to_thread(Path(sign).exists):
            raise SpecError(
                f"checkpoint_dir={str(Path(sign).parent)!r} is another folder on the head node of the cluster. Use one "
                "that both see, or store='redis://...', or start the run on the cluster itself, with cluster='ray'."
            )
        await self._hub.open()

    async def close(self) -> None:
        await self._hub.aclose()

    async def ask(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One call of the hub."""
        self._asked[method] += 1
        return await getattr(self._hub, method)(*args, **options)

    async def renew(self, seat: str | None, worker: str, tokens: Mapping[str, int], lasts: float) -> frozenset[str]:
        """Ray starts a worker anew only when the one before it is gone: what that one held, others may have."""
        self._asked["renew"] += 1
        if seat is not None and worker not in self._joined:
            self._joined.add(worker)
            before, self._seats[seat] = self._seats.get(seat), worker
            if before is not None:
                await self._hub.leave(before)
        return await self._hub.renew(worker, tokens, lasts=lasts)

    async def asked(self) -> dict[str, int]:
        """How often each method was called."""
        return dict(self._asked)


class RayHub:
    """The hub, as a caller or a worker in another process sees it: each method is one call of the actor."""

    def __init__(self, find: Find, seat: str | None = None) -> None:
        """`find` gives the actor, when it is there. `seat`: that of a worker; one that Ray starts anew has the seat of
        the one before it."""
        self._find = find
        self._seat = seat
        self._actor: Any = None

    async def open(self) -> None:
        self._actor = await self._find()

    async def aclose(self) -> None:
        """The actor is closed by whoever made it."""

    async def forget(self) -> None:
        await self._ask("forget")

    async def read(self, name: str) -> Document:
        document: Document = await self._ask("read", name)
        return document

    async def swap(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        return bool(await self._ask("swap", name, old, new))

    async def post(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Ending]:
        plain = [decode_job(encode_job(job)) for job in jobs]  # an input may be of a class that nodes do not have
        ended: dict[str, Ending] = await self._ask("post", plain, retry_failed=retry_failed)
        return ended

    async def left(self) -> int:
        return int(await self._ask("left"))

    async def lease(self, worker: str, most: int, *, lasts: float, wait: float) -> list[Lease]:
        leases: list[Lease] = await self._ask("lease", worker, most, lasts=lasts, wait=wait)
        return leases

    async def renew(self, worker: str, tokens: Mapping[str, int], *, lasts: float) -> frozenset[str]:
        lost: frozenset[str] = await _answered(
            lambda: self._actor.renew.remote(self._seat, worker, dict(tokens), lasts)
        )
        return lost

    async def give_back(self, worker: str, tokens: Mapping[str, int]) -> None:
        await self._ask("give_back", worker, dict(tokens))

    async def leave(self, worker: str) -> None:
        await self._ask("leave", worker)

    async def facts(self, key: str) -> tuple[Fact, ...]:
        facts: tuple[Fact, ...] = await self._ask("facts", key)
        return facts

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        refused: frozenset[str] = await self._ask("write", worker, number, list(writes))
        return refused

    async def spent(self) -> Usage:
        usage: Usage = await self._ask("spent")
        return usage

    async def latest(self) -> Cursor:
        cursor: Cursor = await self._ask("latest")
        return cursor

    async def news(self, after: Cursor, *, wait: float) -> News:
        news: News = await self._ask("news", after, wait=wait)
        return news

    async def tell(self, data: bytes) -> None:
        await self._ask("tell", data)

    async def claim(self, name: str, worker: str) -> bytes | bool:
        claimed: bytes | bool = await self._ask("claim", name, worker)
        return claimed

    async def land(self, name: str, worker: str, outcome: bytes | None, *, lasts: float) -> None:
        await self._ask("land", name, worker, outcome, lasts=lasts)

    async def turn(self, name: str, *, interval: float, ahead: float) -> float:
        return float(await self._ask("turn", name, interval=interval, ahead=ahead))

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
