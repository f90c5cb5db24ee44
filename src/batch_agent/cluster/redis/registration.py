"""Registration of a run in a Redis server, which shows that the server has the run and has not lost it."""

from .keyspace import PREFIX, RedisKeyspace

RUNS = f"{PREFIX}runs"
"""Key of the server's list of runs."""


class RunRegistration:
    """A run's entry in the server's list of runs, and what this process knows that the server must still have."""

    def __init__(self, keyspace: RedisKeyspace) -> None:
        self._keyspace = keyspace
        self._connection = keyspace.connection
        self._is_registered = False
        self.has_work = False
        """Whether work was ever submitted: then the server must still have it."""
        self._creation_mark: bytes | None = None
        """The run's creation mark, for a submitter: another one means another run, and that submitted work is lost."""

    async def register(self) -> None:
        """Before the first thing of the run is written. Raises StoreError."""
        if not self._is_registered:
            await self._connection.call("SADD", RUNS, self._keyspace.name)
            self._is_registered = True

    async def delete(self) -> None:
        """After everything else of the run. Raises StoreError."""
        await self._connection.call("SREM", RUNS, self._keyspace.name)
        self._is_registered = self.has_work = False
        self._creation_mark = None

    def on_submitted(self, creation_mark: bytes) -> None:
        """Work was added to the run with this mark. Raises StoreError."""
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
