"""Lines of CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from ..core.json import dumps
from .rows import jsonable


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode(errors="replace")


def cell(value: Any) -> Any:
    """Texts and numbers as they are, everything else as JSON; empty where there is none."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    plain = jsonable(value)
    return plain if isinstance(plain, str) else dumps(plain).decode()
