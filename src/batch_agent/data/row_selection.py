"""Selection of inputs: a condition on their fields, a random sample, and a limit, in this order."""

import heapq
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ..core.errors import SpecError
from ..core.options import Rows
from ..core.schema import is_model
from ..core.validation import suggestion
from .row_condition import Condition, has_field, parse_condition


class RowSelection:
    """Selection described by `Rows`. It can be applied any number of times."""

    def __init__(self, rows: Rows) -> None:
        """Raises SpecError for a condition that cannot be parsed."""
        self._rows = rows
        self._condition = parse_condition(rows.where) if isinstance(rows.where, str) else None
        self.is_bounded = rows.limit is not None or rows.sample is not None
        """Whether the number of selected inputs is limited, so that they fit into memory."""

    def select(self, inputs: Iterable[Any]) -> Iterator[Any]:
        """Selects inputs, and reads no more of them than needed. Raises SpecError if there are inputs but none of them
        matches."""
        matcher, sample = self._matcher(), self._new_sample()
        matching = inputs if self._rows.where is None else filter(matcher.matches, inputs)
        if sample is not None:
            for each in matching:
                sample.add(each)
            matching = sample.rows()
        yield from islice(matching, self._rows.limit)
        matcher.check()

    async def select_async(self, inputs: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Like `select`, for inputs that arrive asynchronously."""
        matcher, sample, left = self._matcher(), self._new_sample(), self._rows.limit
        async for each in inputs:
            if not matcher.matches(each):
                continue
            if sample is not None:
                sample.add(each)
                continue
            yield each
            left = None if left is None else left - 1
            if left == 0:
                break
        matcher.check()
        for each in islice(sample.rows() if sample is not None else (), self._rows.limit):
            yield each

    def _matcher(self) -> "_Matcher":
        return _Matcher(self._rows.where, self._condition)

    def _new_sample(self) -> "_Sample | None":
        return None if self._rows.sample is None else _Sample(self._rows.sample, self._rows.sample_seed)


class _Sample:
    """Random sample of inputs that are read only once. Each input draws a number, and the smallest numbers win, so a
    larger sample with the same seed contains a smaller one."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._draw = random.Random(seed).random  # noqa: S311 - a sample is no secret
        self._kept: list[tuple[float, int, Any]] = []
        self._position = 0

    def add(self, row: Any) -> None:
        entry = (-self._draw(), self._position, row)
        self._position += 1
        if len(self._kept) < self._size:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)

    def rows(self) -> list[Any]:
        """The sample, in input order."""
        return [row for _, _, row in sorted(self._kept, key=lambda entry: entry[1])]


class _Matcher:
    """Filter of one pass over the inputs, with counts of what it has seen."""

    def __init__(self, where: str | Callable[[Any], Any] | None, condition: Condition | None) -> None:
        self._where = where
        self._condition = condition
        self._unseen = set(condition.fields) if condition is not None else set()
        self._names: dict[str, None] = {}
        self._read = self._matched = 0

    def matches(self, row: Any) -> bool:
        self._read += 1
        if self._condition is not None:
            fields = _fields_of(row)
            if self._unseen:
                self._unseen = {name for name in self._unseen if not has_field(fields, name)}
                self._names |= dict.fromkeys(fields)
            is_match = self._condition.matches(fields)
        else:
            is_match = not callable(self._where) or bool(self._where(row))
        self._matched += is_match
        return is_match

    def check(self) -> None:
        """Raises SpecError if nothing matched, or if the condition names a field that no input has."""
        self._check_fields()
        if self._read and not self._matched and self._where is not None:
            raise SpecError(f"where={self._shown}: none of {self._read:,} inputs match.")

    def _check_fields(self) -> None:
        if self._read and self._unseen:
            name = min(self._unseen)
            raise SpecError(
                f"where={self._shown}: no input has a field {name!r}.{suggestion(name, self._names)} The inputs have: "
                f"{', '.join(self._names)}."
            )

    @property
    def _shown(self) -> str:
        return repr(self._where) if isinstance(self._where, str) else "a function"


def _fields_of(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    if is_model(row):
        return dict(row)
    raise SpecError(
        f"where= with a condition needs inputs with fields, but one is a {type(row).__name__}. In Python, pass a "
        "function: where=lambda text: ..."
    )
