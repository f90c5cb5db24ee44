"""Atomic changes of documents that several processes edit."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from ..core.coordinator import Document, Documents
from ..core.errors import StoreError
from ..schedule.retry import Backoff

_MAX_ATTEMPTS = 20
_BACKOFF = Backoff(first=0.002, ceiling=0.25)
"""Ceilings of the random pauses between attempts. They spread out workers that started together."""


async def change(documents: Documents, name: str, edit: Callable[[Document], Awaitable[bytes | None]]) -> None:
    """Replaces a document with the result of `edit`, or keeps it if the result is None. Calls `edit` again if another
    worker has changed the document meanwhile. Raises StoreError."""
    for attempt in range(_MAX_ATTEMPTS):
        document = await documents.read(name)
        new = await edit(document)
        if new is None or await documents.compare_and_set(name, document.data, new):
            return
        await asyncio.sleep(random.random() * _BACKOFF.delay(attempt))  # noqa: S311
    raise ContentionError(
        f"Document {name!r} could not be changed in {_MAX_ATTEMPTS} attempts because of contention. Use fewer workers."
    )


class ContentionError(StoreError):
    """Raised if the coordinator responds, but too slowly or with too much contention. A retry may succeed."""


async def retry_contention(join: Callable[[], Awaitable[None]]) -> None:
    """Retries `join` after contention: many workers may join at once, and a machine may stall for a moment."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return await join()
        except ContentionError as error:
            failure = error
    raise failure
