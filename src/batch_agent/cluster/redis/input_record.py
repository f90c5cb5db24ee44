"""Record of a run's inputs on the Redis server, for readers of the run: all inputs, and why some were rejected."""

from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from ...core.coordinator import RejectedInput
from ...core.fast_dataclass import dataclass
from ...core.protocols.store import Prices
from ...store.codec import encode_error
from .keyspace import RedisKeyspace
from .registration import RunRegistration
from .write_batches import split_batches

_INPUTS, _REJECTED, _META = "inputs", "rejected", "meta"
_COUNT, _DIGEST, _PRICES = "inputs", "digest", "prices"
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """An input as the last submitter of the run read it."""

    index: int
    data: bytes | None
    """JSON; None if the input cannot be encoded as JSON."""
    error: bytes | None = None
    """Why the input was rejected, encoded by `store/codec.py`."""


class RedisInputRecord:
    """Two hashes by index: inputs and rejected inputs. All submitters of a run write the same data, so a repeated or
    concurrent write changes nothing."""

    def __init__(self, keyspace: RedisKeyspace, registration: RunRegistration) -> None:
        self._connection = keyspace.connection
        self._registration = registration
        self._inputs = keyspace.key(_INPUTS)
        self._rejected = keyspace.key(_REJECTED)
        self._meta = keyspace.key(_META)

    async def save(self, inputs: Sequence[bytes], prices: Prices | None) -> None:
        """Replaces the record. Inputs that another submitter has already saved are not sent. Raises StoreError."""
        await self._registration.register()
        await self._connection.call("DEL", self._rejected)
        digest = _digest(inputs)
        if await self._connection.call("HGET", self._meta, _DIGEST) != digest:
            for batch in split_batches(enumerate(inputs), lambda each: len(each[1])):
                await self._connection.call("HSET", self._inputs, *(part for pair in batch for part in pair))
        saved = (_COUNT, len(inputs), _DIGEST, digest, _PRICES, orjson.dumps(prices))
        await self._connection.call("HSET", self._meta, *saved)

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        """Raises StoreError."""
        rows = [(each.index, encode_error(each.error) + b"\n" + each.data) for each in rejected]
        for batch in split_batches(rows, lambda each: len(each[1])):
            await self._connection.call("HSET", self._rejected, *(part for pair in batch for part in pair))

    async def prices(self) -> Prices | None:
        data = await self._connection.call("HGET", self._meta, _PRICES)
        return None if data is None or (numbers := orjson.loads(data)) is None else tuple(numbers)

    async def pages(self) -> AsyncIterator[list[RecordedInput]]:
        """The record, one page at a time, in no particular order. A rejected input may come twice; the last one has its
        error."""
        count = int(await self._connection.call("HGET", self._meta, _COUNT) or 0)
        async for page in self._scan(self._inputs):
            yield [RecordedInput(index, data or None) for index, data in page if index < count]
        async for page in self._scan(self._rejected):
            split = [(index, value.partition(b"\n")) for index, value in page]
            yield [RecordedInput(index, data or None, error) for index, (error, _, data) in split]

    async def _scan(self, key: str) -> AsyncIterator[list[tuple[int, bytes]]]:
        cursor: Any = 0
        while True:
            cursor, found = await self._connection.call("HSCAN", key, cursor, "COUNT", _PAGE)
            yield [(int(index), data) for index, data in found.items()]
            if int(cursor) == 0:
                return


def _digest(inputs: Sequence[bytes]) -> bytes:
    digest = blake2b(digest_size=16)
    for data in inputs:
        digest.update(b"%d " % len(data) + data)
    return digest.hexdigest().encode()
