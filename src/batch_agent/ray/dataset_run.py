"""Run whose inputs are a Ray Dataset or a large file: a map whose results come to this process."""

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from ray.data import Dataset, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata
from ray.data.exceptions import UserCodeException
from ray.exceptions import RayError, RayTaskError

from ..core.errors import BatchAgentError, ErrorKind
from ..core.results import AgentResult
from ..core.run_failure import RunStopped
from ..data.file_formats import InputFile, iter_files
from ..engine.result_stream import Delivery, ResultChannel
from ..lazy_imports import lazy_modules
from ..run.setup import RunSetup
from .actor_calls import first_line
from .answer_columns import WholeResult
from .dataset_map import map_dataset
from .packed_rows import pack_rows, unpack_rows
from .serialization import RemoteError

with lazy_modules(globals()):
    from .. import data

_RAYS_ADVICE = "\nFailed to apply UDF"
"""Beginning of the text that Ray Data appends to the message of an exception."""


class DatasetRun:
    """Run over the rows of a dataset. Ray Data reads them, and its actors run the agents, block by block."""

    def __init__(self, setup: RunSetup) -> None:
        self._setup = setup

    async def drive(self, outbox: ResultChannel) -> None:
        """Sends each result to `outbox`, in the order of the rows.

        Raises SpecError, BackendError, RunStopped and StoreError."""
        spec = self._setup.spec
        mapped = map_dataset(spec.inputs, replace(spec, inputs=[], out=None, on_result=None), None)
        async with AsyncExitStack() as stack:
            stack.enter_context(_in_order(mapped))  # an index is the position of a row
            write = None
            if spec.out is not None:
                write = await stack.enter_async_context(data.result_file_writer(spec.out))
            deliver = Delivery(outbox.put, spec.on_result, write, self._setup.events).deliver
            results = self._results(mapped)
            while batch := await asyncio.to_thread(_next, results):
                for result in batch:
                    await deliver(result)

    def _results(self, mapped: Any) -> Iterator[list[AgentResult]]:
        """Results, block by block. Blocks the thread."""
        first = 0
        for table in mapped.iter_batches(batch_size=None, batch_format="pyarrow"):
            rows = unpack_rows(table.drop_columns([WholeResult.name]))
            whole = table.column(WholeResult.name).to_pylist()
            yield [self._result(first + at, row, data) for at, (row, data) in enumerate(zip(rows, whole, strict=True))]
            first += len(rows)

    def _result(self, index: int, row: Any, data: bytes) -> AgentResult:
        result: AgentResult = pickle.loads(data)  # noqa: S301 - of an actor of this run
        output = result.output
        if result.ok and self._setup.output is not None:
            output = self._setup.output.validate(output, row)
        return replace(result, index=index, input=row, output=output)


@contextmanager
def _in_order(dataset: Any) -> Iterator[None]:
    """Keeps blocks in order for the duration of the `with` block. The setting also belongs to the user's dataset."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


def _next(results: Iterator[list[AgentResult]]) -> list[AgentResult] | None:
    """The results of the next block that has any; None at the end. Raises like a run."""
    try:
        return next(filter(None, results), None)
    except RayTaskError as error:
        raise _cause(error) from None
    except RayError as error:
        raise RunStopped(ErrorKind.INTERNAL, f"Ray could not run the dataset: {first_line(error)}") from error


def _cause(error: BaseException) -> BaseException:
    """The exception that was raised in an actor."""
    seen: BaseException | None = error
    while isinstance(seen, RayTaskError | UserCodeException):
        seen = seen.cause if isinstance(seen, RayTaskError) else seen.__cause__
    if not isinstance(seen, BatchAgentError):
        return error
    remote = RemoteError.of(seen)
    return replace(remote, message=remote.message.partition(_RAYS_ADVICE)[0]).error()


_ROWS_AT_ONCE = 1_000
_BLOCK_ROWS = 5_000
_BLOCK_BYTES = 4 << 20
"""Maximum bytes in a block of a file. A block is the work of one actor, and its results arrive together: smaller blocks
are shared by more actors and deliver sooner, larger ones cost less. 4 MB are a thousand rows of a page of text."""


def file_dataset(files: Sequence[InputFile]) -> Dataset:
    """The rows of the files in order, packed. Only the first rows are read before the dataset is consumed."""
    rows = read_datasource(_FileRows(files), num_cpus=0, override_num_blocks=1)
    rows.context.target_max_block_size = _block_bytes(files)
    return rows


def _block_bytes(files: Sequence[InputFile]) -> int:
    """Size up to which Ray joins the output of a task to one block, for inputs and results. Ray can count rows too, but
    in a task of its own, which would wait for a CPU that an actor holds."""
    sample = pack_rows(islice(iter_files(files), _ROWS_AT_ONCE))
    return min(_BLOCK_BYTES, _BLOCK_ROWS * int(sample.nbytes) // max(1, int(sample.num_rows)) + 1)


class _FileRows(Datasource):  # type: ignore[misc]  # Ray has no types here
    """One task that reads the files in order. More are not needed: agents take much longer than reading their rows."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        super().__init__()
        self._files = files

    @property
    def supports_distributed_reads(self) -> bool:
        """Returns False, because only the caller's node has the files."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(file.size for file in self._files)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        files, size = self._files, self.estimate_inmemory_data_size()
        metadata = BlockMetadata(num_rows=None, size_bytes=size, exec_stats=None)
        return [ReadTask(lambda: _blocks(files), metadata, per_task_row_limit=per_task_row_limit)]


def _blocks(files: Sequence[InputFile]) -> Iterator[pa.Table]:
    rows = iter_files(files)
    try:
        for first in rows:
            yield pack_rows(chain([first], islice(rows, _ROWS_AT_ONCE - 1)))
    except BatchAgentError as error:
        raise RemoteError.of(error).error() from None  # the error itself may not be picklable
