"""Check of column names: a table's columns become the fields of its inputs, so that each name must be unique."""

from collections import Counter
from collections.abc import Iterable

from ..core.errors import SpecError


def check_unique(names: Iterable[str], where: str, remedy: str = "rename one of them") -> list[str]:
    """The names, as a list. Raises SpecError for duplicates, with `where` they are and the `remedy`."""
    counts = Counter(names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise SpecError(f"{where} has two columns named {twice[0]!r}: {remedy}.")
    return list(counts)
