"""Inputs that are added to a distributed run while it is running.

Each addition is a document at the coordinator, recorded before the control document refers to it. The submitter takes
the additions in order of their numbers, after its own inputs. A restarted submitter takes all of them again and gets
the same keys, so nothing is lost or run twice."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from ..core.coordinator import Document, Documents
from ..core.errors import SpecError, StoreError
from ..core.json import dumps, loads
from ..core.protocols.store import Control
from .document_change import change
from .membership import best_effort
from .shared_control import CONTROL, SharedControls, read_controls

_MAX_BYTES = 64 * 2**20
"""Maximum size of one addition."""

Take = Callable[[Sequence[Any]], None]


async def record_inputs(documents: Documents, values: Sequence[Any]) -> Control:
    """Records inputs to add, and returns the change. Raises SpecError if they are too large, and StoreError."""
    data = dumps(list(values))
    if len(data) > _MAX_BYTES:
        raise SpecError(f"The inputs to add have more than {_MAX_BYTES // 2**20} MiB: add them in several steps.")
    name = f"inputs added {uuid4().hex}"
    await documents.compare_and_set(name, None, data)
    return Control("add", [name, len(values)])


class AddedInputs:
    """The additions of a run, from the view of one submitter."""

    def __init__(self, documents: Documents, caller: str) -> None:
        """`caller`: name of the submitter."""
        self._documents = documents
        self._caller = caller
        self._taken = 0
        """Number of the last change whose inputs were taken."""
        self._take: Take | None = None
        self._on_added: list[Callable[[int], None]] = []
        self._lock = asyncio.Lock()
        self.known: list[Any] = []
        """Inputs that were added before the submitter started to take any."""

    def observe_added(self, on_added: Callable[[int], None]) -> None:
        """Registers a callback that is called with the number of newly added inputs."""
        self._on_added.append(on_added)

    async def update(self, controls: SharedControls) -> None:
        """Takes those additions among the changes that have not been taken yet. Raises StoreError."""
        async with self._lock:
            for each in controls.additions(after=self._taken):
                values = await self._read(each.control)
                self._taken = each.number
                if self._take is None:
                    self.known += values
                else:
                    self._take(values)
                for on_added in self._on_added:
                    on_added(len(values))

    async def open(self, take: Take) -> None:
        """Accepts additions until `close` or `leave`. Raises StoreError."""

        async def join(document: Document) -> bytes | None:
            known = SharedControls.decode(document.data)
            return None if known is None else known.with_caller(self._caller).encode()

        await change(self._documents, CONTROL, join)
        take(self.known)
        self._take = take

    async def close(self) -> bool:
        """Stops accepting additions. Returns False if there are further ones, which are then taken instead. Raises
        StoreError."""
        before, is_closed = self._taken, True
        controls, _ = await read_controls(self._documents)
        if controls is not None:
            await self.update(controls)
        if self._taken != before:
            return False

        async def leave(document: Document) -> bytes | None:
            nonlocal is_closed
            known = SharedControls.decode(document.data)
            is_closed = known is None or not known.additions(after=self._taken)
            return known.without_caller(self._caller).encode() if known is not None and is_closed else None

        await change(self._documents, CONTROL, leave)
        return is_closed

    async def leave(self) -> None:
        """Stops accepting additions like `close`, but leaves those not taken yet to the next run."""

        async def leave(document: Document) -> bytes | None:
            known = SharedControls.decode(document.data)
            return None if known is None else known.without_caller(self._caller).encode()

        await best_effort(change(self._documents, CONTROL, leave))

    async def _read(self, control: Control) -> list[Any]:
        name, count = control.value
        data = (await self._documents.read(name)).data
        if data is None:
            raise StoreError(f"The server has lost {count:,} inputs that were added to the run.")
        values: list[Any] = loads(data)
        return values
