"""An agent's key: a hash of its input and of everything that shapes its answer, never of its position."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

from ..core.schema import is_model
from .jsonable import to_jsonable


def fingerprint(shape: Mapping[str, Any]) -> bytes:
    """A hash of what all agents of a run share."""
    return blake2b(canonical(dict(shape)), digest_size=16).digest()


class Keys:
    """Hands out keys. Equal inputs are each answered, so the second of two gets a key of its own."""

    def __init__(self, run: bytes) -> None:
        self._run = blake2b(digest_size=12, key=run)
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> str:
        """Raises ValueError for an input that holds itself."""
        hashed = self._run.copy()
        hashed.update(canonical(value))
        digest = hashed.digest()
        number = int.from_bytes(digest[:8])
        copy = self._seen.get(number, 0)
        self._seen[number] = copy + 1
        return f"{digest.hex()}-{copy}" if copy else digest.hex()


def canonical(value: Any) -> bytes:
    """The same bytes for the same value, whatever the order of its keys. Raises ValueError for what has no end."""
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # a number too large for it, half a character, or a key that is no text
            pass
    try:
        return _encode(value).encode(errors="surrogatepass")
    except TypeError:  # keys that JSON does not have, or that cannot be sorted
        return _encode(_with_text_keys(value)).encode(errors="surrogatepass")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {repr(key): _with_text_keys(part) for key, part in value.items()}
    return [_with_text_keys(part) for part in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if is_model(value):
        return to_jsonable(value)
    if isinstance(value, Mapping):
        return dict(value)
    # Together with its type, because the text "2024-01-01" is not the date.
    content = sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)
    return {type(value).__qualname__: content}


_SIMPLE = frozenset({str, int, bool, type(None)})
"""What needs no care: most inputs hold nothing else."""
_encode = json.JSONEncoder(default=_plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode
