"""Facts as bytes. The bytes are a promise: what was written by one version is read by the next."""

from typing import assert_never

from pydantic import TypeAdapter

from ..core.facts import Fact, Replied, Returned

_REPLIED = TypeAdapter(Replied)
_RETURNED = TypeAdapter(Returned)


def encode(fact: Fact) -> tuple[str, bytes]:
    """The kind of a fact, and its fields as JSON."""
    match fact:
        case Replied():
            return "replied", _REPLIED.dump_json(fact)
        case Returned():
            return "returned", _RETURNED.dump_json(fact)
        case _:
            assert_never(fact)


def decode(kind: str, data: bytes) -> Fact:
    """Raises ValueError for what no fact looks like."""
    if kind == "replied":
        return _REPLIED.validate_json(data)
    if kind == "returned":
        return _RETURNED.validate_json(data)
    raise ValueError(f"unknown kind of fact: {kind!r}")
