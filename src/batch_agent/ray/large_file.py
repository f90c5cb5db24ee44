"""Files of more than a million rows, which a run on Ray reads and runs by blocks, as `BatchAgent.map` does.

The reader of all runs reads them, on the node of the caller. Ray Data would guess the types of columns, and would need
the file on every node."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from ray.data import Dataset, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata

from ..core.errors import BatchAgentError
from ..data.input_files import InputFile, iter_files
from .packed_rows import pack_rows
from .serialization import RemoteError

_BLOCK_ROWS = 10_000


def file_dataset(files: Sequence[InputFile]) -> Dataset:
    """The rows of the files, in their order, packed. Nothing is read before the dataset is consumed."""
    return read_datasource(_FileRows(files), num_cpus=0, override_num_blocks=1)


class _FileRows(Datasource):  # type: ignore[misc]  # Ray has no types here  # type: ignore[misc]  # Ray has no types
    """One task that reads the files one after the other: agents take much longer than their rows."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        super().__init__()
        self._files = files

    @property
    def supports_distributed_reads(self) -> bool:
        """Only the node of the caller has the files."""
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
            yield pack_rows(chain([first], islice(rows, _BLOCK_ROWS - 1)))
    except BatchAgentError as error:
        raise RemoteError.of(error).error() from None  # the error itself may hold what cannot be pickled
