"""The table of edges is complete, and every test that it names is there."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from tests.edges.table import COLUMNS, COUNTS, SECTIONS, VALUES

from batch_agent import BatchAgent, Endpoint, Tool, VLLMPool
from batch_agent.core.events import Event
from batch_agent.core.spec import OPTION_NAMES
from batch_agent.tools.tool import ToolOptions

TESTS = Path(__file__).parents[1]
THERE_ARE = {
    "option": set(OPTION_NAMES),
    "tool": set(ToolOptions.__annotations__),
    "batch": set(inspect.signature(Tool.batchable).parameters) - {"options"},
    "endpoint": set(inspect.signature(Endpoint).parameters),
    "pool": set(inspect.signature(VLLMPool).parameters),
    "event": {kind.__name__ for kind in get_args(Event)},
}


def cells() -> Iterator[tuple[str, str]]:
    """Where each cell stands, and what it says."""
    yield from COUNTS.items()
    for section, rows in SECTIONS.items():
        yield f"{section} values", VALUES[section]
        for names, found in rows.items():
            yield from (
                (f"{names.split()[0]}.. {column}", cell) for column, cell in zip(COLUMNS[5:], found, strict=True)
            )


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("section", THERE_ARE)
def test_every_public_name_has_one_row_in_the_edge_table(section: str) -> None:
    named = [name for names in SECTIONS[section] for name in names.split()]
    assert sorted(named) == sorted(THERE_ARE[section])


def test_every_entry_point_has_a_test_of_input_counts() -> None:
    methods = {name for name, _ in inspect.getmembers(BatchAgent, inspect.ismethod) if not name.startswith("_")}
    assert methods <= set(COUNTS)


@pytest.mark.slow
def test_every_cell_names_an_existing_test_or_the_reason_for_none() -> None:
    missing = [
        f"{where}: {cell}"
        for where, cell in cells()
        if not cell.startswith("- ") and cell.partition("::")[2] not in functions(cell.partition("::")[0])
    ]
    assert not missing
