"""Inputs of a run, from any sync or async iterable, read only as fast as agents are started."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Set, Sized
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from ..aio import is_being_cancelled
from ..core.agent_config import SAMPLE_MARK, Job, SampleId
from ..core.errors import BatchAgentError, ErrorKind
from ..core.results import AgentError
from ..core.run_failure import RunStopped

_GROUP = 64
"""Number of agents whose facts are read together."""


class JobSource:
    """The inputs of a run. The first one can be inspected before the run starts."""

    def __init__(self, inputs: Iterable[Any] | AsyncIterable[Any], *, is_fed: bool = False) -> None:
        """`is_fed`: the inputs come from the previous stage of a flow. Raises RunStopped, as `next` does."""
        self.is_fed = is_fed
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        self._peeked: deque[Any] = deque()
        self._read = 0
        self._failure: RunStopped | None = None
        self.rows = inputs if isinstance(inputs, Sequence) else None
        """All inputs, if they are a sequence."""
        try:
            self.total = len(inputs) if isinstance(inputs, Sized) else None
            if isinstance(inputs, AsyncIterable):
                self._async = aiter(inputs)
            else:
                self._sync = iter(inputs)
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._fail(error)

    async def peek(self) -> list[Any]:
        """A list of the first input, or an empty list. Raises RunStopped."""
        if not self._peeked:
            with suppress(StopAsyncIteration):
                self._peeked.append(await self._next())
        return list(islice(self._peeked, 1))

    async def read_ahead(self, limit: int) -> list[Any] | None:
        """All inputs, if there are at most `limit`; `next` still returns them. None if there are more, or if the
        iterator raises, which `next` reports in its turn."""
        while len(self._peeked) <= limit:
            try:
                self._peeked.append(await self._next())
            except StopAsyncIteration:
                return list(self._peeked)
            except RunStopped as error:
                self._failure = error
                break
        return None

    @property
    def known(self) -> Sequence[Any]:
        """All inputs that are known so far."""
        return self.rows if self.rows is not None else list(islice(self._peeked, 1))

    async def next(self) -> Any:
        """The next input. Raises StopAsyncIteration at the end, and RunStopped if the user's iterator raises."""
        if self._peeked:
            return self._peeked.popleft()
        if self._failure is not None:
            raise self._failure
        return await self._next()

    def at(self, index: int) -> Any:
        """One of `rows`. Raises IndexError, and RunStopped if the user's sequence raises anything else."""
        assert self.rows is not None
        try:
            value = self.rows[index]
        except IndexError:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._fail(error)
        self._read += 1
        return value

    async def _next(self) -> Any:
        try:
            value = await anext(self._async) if self._async is not None else self._next_sync()
        except StopAsyncIteration:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._fail(error)
        self._read += 1
        if self.rows is None and type(value) is dict:  # a generator may yield one dict that it fills again
            return value.copy()
        return value

    def _next_sync(self) -> Any:
        assert self._sync is not None
        for value in self._sync:
            return value
        raise StopAsyncIteration

    def _fail(self, error: BaseException) -> NoReturn:
        """Raises RunStopped for an error in the user's code, which ends the inputs but not the agents of earlier
        ones."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
            raise error
        if isinstance(error, RunStopped) or (isinstance(error, BatchAgentError) and not self._read):
            raise error  # of the inputs of a flow, or of our own readers before anything was sent
        raise RunStopped(ErrorKind.INPUTS, _failure_message(self._read, error)) from error


class InputSource:
    """Work source of a single process: every input once, in the order of the layout."""

    def __init__(
        self,
        inputs: JobSource,
        job: Callable[..., Job],
        order: Iterable[int] | None = None,
        samples: int = 1,
        blocks: Callable[[Any], bool] | None = None,
        without: Set[SampleId] = frozenset(),
    ) -> None:
        """`job`: makes the job for an index and an input, and for the number of a sample after the first. `order`:
        order of the indices, for a sequence; None: the order of the iterable. `samples`: agents per input, which follow
        each other. `blocks`: whether `job` reads files of an input, and so has to be called in a thread. `without`:
        samples to leave out."""
        self._blocks = blocks
        self._without = without
        self.total = None if inputs.total is None else inputs.total * samples
        self.is_bounded = inputs.total is not None or inputs.is_fed
        self._inputs = inputs
        self._job = job
        self._order = None if order is None else iter(order)
        self._index = 0
        self._samples = samples
        self._last: tuple[int, Any] = (0, None)
        self._sample = samples - 1
        """Number of the sample of the last job."""
        self._added: deque[Any] = deque()
        """Inputs that were added during the run, which follow the others."""

    def add(self, values: Sequence[Any]) -> None:
        """Adds inputs after all others."""
        self._added.extend(values)
        if self.total is not None:
            self.total += len(values) * self._samples

    async def take(self) -> Job | None:
        """Raises RunStopped if the user's iterator raises."""
        while True:
            if self._sample < self._samples - 1:
                self._sample += 1
            else:
                try:
                    self._last = await self._next()
                except StopAsyncIteration:
                    if not self._added:
                        return None
                    self._last = max(self._index, self._inputs.total or 0), self._added.popleft()
                    self._index = self._last[0] + 1
                self._sample = 0
            index, value = self._last
            try:
                arguments = (index, value, self._sample) if self._sample else (index, value)
                if self._blocks is not None and self._blocks(value):
                    job = await asyncio.to_thread(self._job, *arguments)
                else:
                    job = self._job(*arguments)
            except Exception as error:  # noqa: BLE001 - the user's objects may raise anything
                job = _bad_input_job(index, value, self._sample, error)
            if not self._without or (index, self._sample) not in self._without:
                return job  # keys are made of the others too: those of the samples behind them follow from them

    def release(self, job: Job) -> None:
        """Does nothing: the work is not shared."""

    async def _next(self) -> tuple[int, Any]:
        if self._order is not None and self._inputs.rows is not None:
            for index in self._order:
                try:
                    return index, self._inputs.at(index)
                except IndexError:  # the sequence has become shorter, or has a wrong length
                    break
            raise StopAsyncIteration
        value = await self._inputs.next()
        index, self._index = self._index, self._index + 1
        return index, value


class GroupedSource:
    """Work source of a resumed run. It takes jobs in groups, so that the facts of a group are read together."""

    def __init__(self, source: InputSource, read: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        """`read`: reads the facts of the agents with these keys, and keeps them for their use."""
        self._source = source
        self._read = read
        self._jobs: deque[Job] = deque()
        self._failure: RunStopped | None = None
        self.release = source.release

    @property
    def total(self) -> int | None:
        return self._source.total

    @property
    def is_bounded(self) -> bool:
        return self._source.is_bounded

    async def take(self) -> Job | None:
        """Raises RunStopped as the source does, after the jobs before it."""
        if not self._jobs and self._failure is None:
            await self._take_group()
        if self._jobs:
            return self._jobs.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    async def _take_group(self) -> None:
        try:
            while len(self._jobs) < _GROUP and (job := await self._source.take()) is not None:
                self._jobs.append(job)
        except RunStopped as error:
            self._failure = error
        if self._jobs:
            await self._read([job.key for job in self._jobs])


def _bad_input_job(index: int, value: Any, sample: int, error: Exception) -> Job:
    reason = AgentError(ErrorKind.BAD_INPUT, f"Input {index} cannot be used: {error}")
    return Job(index, f"unusable-{index}{f'{SAMPLE_MARK}{sample}' if sample else ''}", value, "", reason)


def _failure_message(read: int, error: BaseException) -> str:
    where = f"Reading the inputs failed after {read:,}" if read else "The inputs cannot be read"
    return f"{where}: {type(error).__name__}: {error}"
