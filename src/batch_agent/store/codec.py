"""Facts as bytes. The bytes are a promise: what was written by one version is read by the next."""

from pydantic import TypeAdapter

from ..core.facts import Claimed, Fact, Inherited, Replied, Returned, Settled, Started

_KINDS: dict[str, TypeAdapter[Fact]] = {
    kind.__name__.lower(): TypeAdapter(kind) for kind in (Started, Replied, Returned, Claimed, Settled, Inherited)
}


def encode(fact: Fact) -> tuple[str, bytes]:
    """The kind of a fact, and its fields as JSON."""
    kind = type(fact).__name__.lower()
    return kind, _KINDS[kind].dump_json(fact, fallback=str)


def decode(kind: str, data: bytes) -> Fact:
    """Raises ValueError for what no fact looks like."""
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of fact: {kind!r}")
    return _KINDS[kind].validate_json(data)
