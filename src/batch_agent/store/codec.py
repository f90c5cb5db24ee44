"""Facts as bytes. The bytes are a promise: what was written by one version is read by the next."""

import orjson
from pydantic import TypeAdapter

from ..core.facts import Claimed, Compacted, Fact, Inherited, Replied, Returned, Settled, Started

_NAMES: dict[type, str] = {
    kind: kind.__name__.lower() for kind in (Started, Replied, Returned, Claimed, Settled, Inherited, Compacted)
}
_KINDS: dict[str, TypeAdapter[Fact]] = {name: TypeAdapter(kind) for kind, name in _NAMES.items()}


def encode(fact: Fact) -> tuple[str, bytes]:
    """The kind of a fact, and its fields as JSON."""
    kind = _NAMES[type(fact)]
    try:
        return kind, orjson.dumps(fact, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a character, a number of many digits
        return kind, _KINDS[kind].dump_json(fact, fallback=str)


def decode(kind: str, data: bytes) -> Fact:
    """Raises ValueError for what no fact looks like."""
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of fact: {kind!r}")
    return _KINDS[kind].validate_json(data)
