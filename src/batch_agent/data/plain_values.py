"""Table values as plain Python values, which JSON can represent and which are equal in every process; column names."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from ..core.errors import SpecError

_PLAIN = frozenset({str, int, bool, type(None), bytes, date, time, timedelta, Decimal})


def plain_value(value: Any) -> Any:
    """Converts NumPy and pandas values to Python values, and missing values (NaN, NaT, NA) to None."""
    if type(value) in _PLAIN:
        return value
    if type(value) is datetime:
        return _with_standard_utc(value)
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


def _with_standard_utc(value: datetime) -> datetime:
    """Replaces a library's UTC with the standard library's."""
    return value.replace(tzinfo=UTC) if value.tzinfo is not None and value.tzname() == "UTC" else value


def _of_pandas(value: Any) -> Any:
    pandas: Any = sys.modules.get("pandas")  # values of pandas exist only if it is imported
    if pandas is None:
        return value
    if value is pandas.NaT or value is pandas.NA:
        return None
    if isinstance(value, pandas.Timestamp):
        return _with_standard_utc(value.to_pydatetime(warn=False))
    return value.to_pytimedelta() if isinstance(value, pandas.Timedelta) else value


def _of_numpy(value: Any) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return value
    if isinstance(value, numpy.ndarray) and value.ndim:
        return [plain_value(part) for part in value]
    if isinstance(value, numpy.datetime64 | numpy.timedelta64):  # values finer than microseconds would become numbers
        value = value.astype("datetime64[us]" if isinstance(value, numpy.datetime64) else "timedelta64[us]")
    return plain_value(value.item())


def check_unique(names: Iterable[str], where: str, remedy: str = "rename one of them") -> list[str]:
    """The names as a list. Raises SpecError for duplicates. `where`: their place, for the message. `remedy`: what to
    do."""
    counts = Counter(names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise SpecError(f"{where} has two columns named {twice[0]!r}: {remedy}.")
    return list(counts)
