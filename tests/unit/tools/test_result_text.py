"""What tools give reaches the model whole: tables and arrays are not cut by their own `repr`."""

import json
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from batch_agent import Tool
from batch_agent.core.messages import ToolCall
from batch_agent.tools import ToolExecutor, as_tool
from batch_agent.tools.result_text import as_text


@dataclass
class Found:
    town: str
    values: Any


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.arange(1500), json.dumps(list(range(1500)), separators=(",", ":"))),
        (np.zeros((60, 60), dtype="int8"), json.dumps([[0] * 60] * 60, separators=(",", ":"))),
        (np.array([0.1, 2.5], dtype="float32"), "[0.1,2.5]"),
        (np.array(["2024-01-02"], dtype="datetime64[D]"), '["2024-01-02"]'),
        (np.array([(1, "a")], dtype=[("n", "i4"), ("name", "U3")]), "n,name\n1,a"),
        (np.int64(3), "3"),
        (np.float32(0.1), "0.1"),
        (pd.DataFrame({"n": range(200), "x": "y"}), "n,x\n" + "\n".join(f"{n},y" for n in range(200))),
        (pd.DataFrame([[1] * 40]), f"{','.join(map(str, range(40)))}\n{','.join('1' * 40)}"),
        (pd.DataFrame({"a": [1.5, None], "b": ["x,y", None]}), 'a,b\n1.5,"x,y"\n,'),
        (pd.DataFrame({"n": [1, 2]}, index=["a", "b"]), "index,n\na,1\nb,2"),
        (pd.Series(["a", "b", "a"], name="town").value_counts(), "town,count\na,2\nb,1"),
        (pd.DataFrame({"l": [[1, 2]], "d": [Decimal("1.10")], "t": [pd.Timestamp("2024-01-02")]}),
         'l,d,t\n"[1,2]",1.10,2024-01-02T00:00:00'),
        (pd.DataFrame(), "(a table without columns)"),
        (pd.Index(range(3)), "[0,1,2]"),
        (pl.DataFrame({"a": [1, None], "l": [[1], [2, 3]]}), 'a,l\n1,[1]\n,"[2,3]"'),
        (pl.Series("n", range(300)), json.dumps(list(range(300)), separators=(",", ":"))),
        (pa.table({"n": range(300)}), "n\n" + "\n".join(map(str, range(300)))),
        (pa.array(range(300)), json.dumps(list(range(300)), separators=(",", ":"))),
        ({"df": pd.DataFrame({"a": [1]}), "array": np.arange(2), "n": np.int64(4)},
         '{"df":[{"a":1}],"array":[0,1],"n":4}'),
        ({"gone": pd.NaT, "none": pd.NA}, '{"gone": null, "none": null}'),
        (Found("Ulm", np.arange(3)), '{"town":"Ulm","values":[0,1,2]}'),
        ({"raw": b"\xff", "array": np.arange(3)}, '{"raw": "[1 bytes of binary data]", "array": [0, 1, 2]}'),
        (range(3), "[0,1,2]"),
        (UserDict(a=1), '{"a":1}'),
        ({"a": 1}.values(), "[1]"),
        ((n for n in range(3)), "[0,1,2]"),
        ([Path("/x"), Decimal("1.10"), date(2024, 1, 2), {1}], '["/x","1.10","2024-01-02",[1]]'),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}" if not isinstance(value, str) else "",
)  # fmt: skip
def test_a_value_is_rendered_whole(value: Any, text: str) -> None:
    assert as_text(value) == text


async def ask(tool: Any, **options: Any) -> tuple[str, bool]:
    executor = ToolExecutor([as_tool(tool)], timeout=None, **options)
    try:
        [result] = await executor.session("a").results([ToolCall("1", "look", "{}")])
    finally:
        await executor.aclose()
    return result.content, result.is_error


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_long_table_is_cut_as_any_long_result_and_says_so(is_async: bool) -> None:
    def look() -> Any:
        return pd.DataFrame({"n": range(1000)})

    async def look_async() -> Any:
        return look()

    tool = Tool.define(name="look")(look_async if is_async else look)
    content, is_error = await ask(tool, max_tokens=10)
    assert not is_error
    assert content.startswith("n\n0\n1\n")
    assert content.endswith("[cut here: 40 of 3891 characters are shown]")


async def test_a_query_that_was_not_made_is_refused_with_what_to_return() -> None:
    def look() -> Any:
        return pl.DataFrame({"a": [1]}).lazy()

    content, is_error = await ask(look, max_tokens=100)
    assert is_error
    assert "return its collect()" in content


def test_an_iterator_that_raises_is_an_error_and_not_an_empty_list() -> None:
    with pytest.raises(ZeroDivisionError):
        as_text(1 // number for number in (1, 0))
    with pytest.raises(RuntimeError, match="a generator in the result raised"):
        as_text({"parts": (1 // number for number in (1, 0))})
    assert as_text(each for each in (b"a", b"\xff")) == '["a", "[1 bytes of binary data]"]'


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"deep": value}])
def test_values_with_binary_data_are_whole_too(wrap: Callable[[Any], Any]) -> None:
    many = [b"\xff"] * 1500
    for value in (np.array(many), pd.Index(many), pl.Series(many), pa.array(many)):
        assert as_text(wrap(value)).count("[1 bytes of binary data]") == 1500


def test_a_nested_table_keeps_columns_that_have_the_same_name() -> None:
    table = pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])
    assert json.loads(as_text({"x": table})) == {"x": [["a", "a"], [1, 2], [3, 4]]}
