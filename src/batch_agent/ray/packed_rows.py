"""Rows of any type as a column of a Ray Dataset, and rows of a dataset as inputs of agents."""

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

_NAME = "__batch_agent_row__"


def pack_rows(rows: Iterable[Any]) -> pa.Table:
    """The rows as a single column, unchanged. Arrow columns would give all rows the same fields and types."""
    return pa.table({_NAME: pa.array(map(pickle.dumps, rows), pa.large_binary())})


def unpack_rows(block: pa.Table) -> list[Any]:
    """The rows of a block, packed or not."""
    if _NAME not in block.column_names:
        return list(block.to_pylist())
    return [pickle.loads(row) for row in block.column(_NAME).to_pylist()]  # noqa: S301 - of a process of this run
