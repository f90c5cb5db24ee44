"""Values of tables as plain Python has them, so that they can be written as JSON and are the same in every process."""

import math
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_PLAIN = frozenset({str, int, bool, type(None), bytes, date, time, timedelta, Decimal})


def plain_value(value: Any) -> Any:
    """Missing values (NaN, NaT, NA) are None; numbers, dates and arrays of NumPy and pandas are Python's own."""
    if type(value) in _PLAIN:
        return value
    if type(value) is datetime:
        return _of_zone(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, Mapping):
        return {str(name): plain_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return _of_numpy(_of_pandas(value))


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): plain_value(value) for name, value in row.items()}


def _of_zone(value: datetime) -> datetime:
    """Libraries have their own UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is not None and value.tzname() == "UTC" else value


def _of_pandas(value: Any) -> Any:
    pandas: Any = sys.modules.get("pandas")  # without it there are no such values
    if pandas is None:
        return value
    if value is pandas.NaT or value is pandas.NA:
        return None
    if isinstance(value, pandas.Timestamp):
        return _of_zone(value.to_pydatetime(warn=False))
    return value.to_pytimedelta() if isinstance(value, pandas.Timedelta) else value


def _of_numpy(value: Any) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return value
    if isinstance(value, numpy.ndarray) and value.ndim:
        return [plain_value(part) for part in value]
    if isinstance(value, numpy.datetime64 | numpy.timedelta64):  # finer ones become numbers
        value = value.astype("datetime64[us]" if isinstance(value, numpy.datetime64) else "timedelta64[us]")
    return plain_value(value.item())
