"""An agent's key: a hash of its input and of everything that shapes its answer, never of its position."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson
from pydantic import BaseModel

_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def fingerprint(shape: Mapping[str, Any]) -> bytes:
    """A hash of what all agents of a run share."""
    return blake2b(_canonical(dict(shape)), digest_size=16).digest()


class Keys:
    """Hands out keys. Equal inputs are each answered, so the second of two gets a key of its own."""

    def __init__(self, run: bytes) -> None:
        self._run = run
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> str:
        digest = blake2b(_canonical(value), digest_size=12, key=self._run).digest()
        number = int.from_bytes(digest[:8])
        copy = self._seen.get(number, 0)
        self._seen[number] = copy + 1
        return f"{digest.hex()}-{copy}" if copy else digest.hex()


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain, option=_SORTED)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return repr(value)
