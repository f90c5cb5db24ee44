"""Record that a Redis server has a run, by which its loss is detected."""

from .keyspace import PREFIX, RedisKeyspace

RUNS = f"{PREFIX}runs"
"""Key of the list of runs on the server."""


class RunRegistration:
    """A run's entry in the server's list of runs, and what this process knows the server must still have."""

    def __init__(self, keyspace: RedisKeyspace) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection
        self._is_registered = False
        self.has_work = False
        """Whether work was ever submitted. If so, the server must still have it."""
        self._creation_mark: bytes | None = None
        """The run's creation mark, kept by submitters. A different mark means that the run was replaced and submitted
        work is lost."""

    async def register(self) -> None:
        """Registers the run, before anything else of it is written. Raises StoreError."""
        if not self._is_registered:
            await self._connection.call("SADD", RUNS, self._keyspace.name)
            self._is_registered = True

    async def delete(self) -> None:
        """Deletes the entry, after everything else of the run. Raises StoreError."""
        await self._connection.call("SREM", RUNS, self._keyspace.name)
        self._is_registered = self.has_work = False
        self._creation_mark = None

    def on_submitted(self, creation_mark: bytes) -> None:
        """Notes that work was added to the run with this mark. Raises StoreError."""
        if self._creation_mark not in (None, creation_mark):
            raise self._keyspace.lost()
        self._creation_mark = creation_mark

    async def check(self) -> None:
        """Raises StoreError if the server has lost the run."""
        state = self._keyspace.key("state")
        if (
            self._creation_mark is not None
            and await self._connection.call("HGET", state, "born") != self._creation_mark
        ):
            raise self._keyspace.lost()
        if self.has_work and not await self._connection.call("HEXISTS", state, "born"):
            raise self._keyspace.lost()
