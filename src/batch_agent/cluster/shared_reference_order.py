"""Order of references that all workers of a run use, in a document of the coordinator."""

import asyncio
from hashlib import blake2b

from ..core.coordinator import Coordinator, Document, SharedRank
from .shared_limits import change

_NAME = "references"
_DIGEST_BYTES = 8
MAX_REFERENCES = 4_096
"""Further references have the same rank. The document is read and written as a whole."""


class SharedReferenceOrder:
    """Ranks by the order in which any worker first asked. A worker asks the coordinator once for each reference."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._ranks: dict[bytes, SharedRank] = {}
        self._new: set[bytes] = set()
        self._lock = asyncio.Lock()

    async def rank(self, heading: str) -> SharedRank:
        """Raises StoreError."""
        digest = blake2b(heading.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()
        if digest not in self._ranks:
            self._new.add(digest)
            async with self._lock:  # what is asked for meanwhile is added in one go
                if digest not in self._ranks:
                    await self._append()
        return self._ranks.get(digest) or SharedRank(MAX_REFERENCES, is_elsewhere=False)

    async def _append(self) -> None:
        wanted = sorted(self._new)
        known: list[bytes] = []
        added: list[bytes] = []

        async def append(document: Document) -> bytes:
            data = document.data or b""
            known[:] = [data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES)]
            present = set(known)
            added[:] = [each for each in wanted if each not in present][: max(0, MAX_REFERENCES - len(known))]
            return data + b"".join(added)

        await change(self._coordinator, _NAME, append)
        for rank, digest in enumerate([*known, *added]):
            self._ranks.setdefault(digest, SharedRank(rank, rank < len(known)))
        self._new.difference_update(wanted)
