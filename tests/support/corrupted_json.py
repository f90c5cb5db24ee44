"""Any JSON, any value in the place of another, and bytes in pieces of any size, for properties of decoders."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hypothesis import strategies as st

from batch_agent import BackendError

T = TypeVar("T")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def pieces(data: bytes, at: Iterable[int]) -> Iterator[bytes]:
    """`data`, cut at these positions."""
    start = 0
    for end in sorted({min(position, len(data)) for position in at} | {len(data)}):
        yield data[start:end]
        start = end


def until_it_fails(make: Callable[[], Iterator[T]]) -> list[T | str]:
    """All items of an iterator, and its BackendError as the last one."""
    found: list[T | str] = []
    try:
        for item in make():
            found.append(item)
    except BackendError as error:
        found.append(f"{error.kind}: {error}")
    return found


def paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value inside a JSON value, with that of the value itself."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(inner for key, value in inside for inner in paths(value, (*path, key)))]


def replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a JSON value with another value at this path."""
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy
