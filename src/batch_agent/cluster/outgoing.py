"""What a worker has to write to the hub: in order for each agent, together with others, no sooner than it must be."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.hub import Write

MOMENT = 0.04
"""Seconds. What somebody waits for goes at the next full one, so that all of the same one go together."""
A_WHILE = 0.2
"""The same for what nobody waits for, at the next but one. If the worker dies it is done again, as if it had still been
under way."""


@dataclass(slots=True)
class Parcel:
    """Of one agent, with its parts, and whoever waits until it is written."""

    writes: list[Write] = field(default_factory=list)
    waiters: "list[asyncio.Future[None]]" = field(default_factory=list)
    due: float | None = None
    """None: nobody minds when."""


class Outgoing:
    """Time is an argument; nothing here waits."""

    def __init__(self) -> None:
        self._parcels: dict[str, Parcel] = {}
        self.next_due: float | None = None

    def __bool__(self) -> bool:
        return bool(self._parcels)

    @property
    def agents(self) -> list[str]:
        return list(self._parcels)

    def add(self, write: Write, now: float, *, is_due: bool = True) -> None:
        parcel = self._of(write.key)
        parcel.writes.append(write)
        if is_due and parcel.due is None:
            self._put_due(parcel, (now // A_WHILE + 2) * A_WHILE)

    def hurry(self, key: str, waiter: "asyncio.Future[None]", now: float, *, at_once: bool = False) -> None:
        """Somebody waits for all that there is of this agent. `at_once`: with the next message, for a call that holds
        a place of its tool meanwhile."""
        parcel = self._of(key)
        parcel.waiters.append(waiter)
        self._put_due(parcel, now if at_once else (now // MOMENT + 1) * MOMENT)

    def take(self, now: float, most: int) -> Iterator[list[Parcel]]:
        """What is due by now, in loads of about so many writes."""
        due = [agent for agent, parcel in self._parcels.items() if parcel.due is not None and parcel.due <= now]
        load: list[Parcel] = []
        for agent in due:
            load.append(self._parcels.pop(agent))
            if sum(len(parcel.writes) for parcel in load) >= most:
                yield load
                load = []
        self.next_due = min((parcel.due for parcel in self._parcels.values() if parcel.due is not None), default=None)
        if load:
            yield load

    def _of(self, key: str) -> Parcel:
        return self._parcels.setdefault(key.partition(".")[0], Parcel())

    def _put_due(self, parcel: Parcel, due: float) -> None:
        parcel.due = due if parcel.due is None else min(due, parcel.due)
        self.next_due = parcel.due if self.next_due is None else min(self.next_due, parcel.due)
