"""Jobs from any iterable of inputs, sync or async, read only as fast as they are worked on."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from ..core.errors import ErrorKind
from ..core.results import AgentError
from ..core.rules import Job


class Inputs:
    """The inputs of a run, with a look at the first one before anything starts."""

    def __init__(self, inputs: Iterable[Any] | AsyncIterable[Any], *, is_fed: bool = False) -> None:
        """`is_fed`: they come from the stage before, and end with it."""
        self.is_fed = is_fed
        self.total = len(inputs) if isinstance(inputs, Sized) else None
        self.rows = inputs if isinstance(inputs, Sequence) else None
        """All of them, where they are there already."""
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        if isinstance(inputs, AsyncIterable):
            self._async = aiter(inputs)
        else:
            self._sync = iter(inputs)
        self._peeked: list[Any] = []

    async def peek(self) -> list[Any]:
        """The first input in a list, or an empty one."""
        try:
            self._peeked = [await self.next()]
        except StopAsyncIteration:
            self._peeked = []
        return list(self._peeked)

    @property
    def known(self) -> Sequence[Any]:
        """All that is known of them so far."""
        return self.rows if self.rows is not None else list(self._peeked)

    async def next(self) -> Any:
        """The next input. Raises StopAsyncIteration at the end, or whatever the user's own iterator raises."""
        if self._peeked:
            return self._peeked.pop()
        if self._async is not None:
            return await anext(self._async)
        assert self._sync is not None
        for value in self._sync:
            return value
        raise StopAsyncIteration


class InputSource:
    """The work source of one process: every input once, in the order in which they are to be asked."""

    def __init__(self, inputs: Inputs, job: Callable[[int, Any], Job], asking: Iterable[int] | None = None) -> None:
        """`asking`: the numbers of the inputs in that order, for inputs that are all there; None: as they come."""
        self.total = inputs.total
        self.is_bounded = inputs.total is not None or inputs.is_fed
        self._inputs = inputs
        self._job = job
        self._asking = None if asking is None else iter(asking)
        self._index = 0

    async def take(self) -> Job | None:
        try:
            index, value = await self._next()
        except StopAsyncIteration:
            return None
        try:
            return self._job(index, value)
        except (TypeError, ValueError) as error:
            return _unusable(index, value, error)

    def release(self, job: Job) -> None:
        """Nobody else wants it."""

    async def _next(self) -> tuple[int, Any]:
        if self._asking is not None and self._inputs.rows is not None:
            for index in self._asking:
                try:
                    return index, self._inputs.rows[index]
                except IndexError:  # it has become shorter, or was never as long as it said
                    break
            raise StopAsyncIteration
        value = await self._inputs.next()
        index, self._index = self._index, self._index + 1
        return index, value


def _unusable(index: int, value: Any, error: Exception) -> Job:
    reason = AgentError(ErrorKind.BAD_INPUT, f"Input {index} cannot be used: {error}")
    return Job(index, f"unusable-{index}", value, "", reason)
