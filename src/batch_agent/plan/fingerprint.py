"""Keys of agents: a hash of the input and of everything that can change the answer, but not of the input's index."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from ..core.agent_config import key_of_sample
from ..core.images import as_image
from ..core.schema import is_model
from .hash_set import HashSet
from .jsonable import to_jsonable


def fingerprint(shape: Mapping[str, Any]) -> bytes:
    """Hash of what all agents of a run share."""
    return blake2b(canonical(dict(shape)), digest_size=16).digest()


class Keys:
    """Generator of keys. Equal inputs are all answered, so each copy gets a key of its own."""

    def __init__(self, run: bytes) -> None:
        self._run = blake2b(digest_size=12, key=run)
        self._seen = HashSet()
        self._copies: dict[int, int] = {}
        """Number of copies of each repeated input."""

    def key(self, value: Any, sample: int = 0, images: Sequence[str] = ()) -> str:
        """Key of the next input. The samples of an input are consecutive. `images`: digests of its images. Raises
        ValueError for an input that contains itself."""
        hashed = self._run.copy()
        hashed.update(canonical(value))
        if images:
            hashed.update("".join(images).encode())
        digest = hashed.digest()
        number = int.from_bytes(digest[:8])
        copy = 0
        if sample:
            copy = self._copies.get(number, 0)
        elif not self._seen.add(number):
            copy = self._copies[number] = self._copies.get(number, 0) + 1
        key = f"{digest.hex()}-{copy}" if copy > 0 else digest.hex()
        return key_of_sample(key, sample) if sample else key


def canonical(value: Any) -> bytes:
    """Canonical encoding: the same bytes for equal values, whatever the order of keys. Raises ValueError for a value
    that contains itself or is nested too deeply."""
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # an integer beyond 64 bits, a lone surrogate, or a key that is not a string
            pass
    try:
        return _encode(value).encode(errors="surrogatepass")
    except TypeError:  # keys that JSON does not support, or that cannot be sorted
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
    if (image := as_image(value)) is not None:
        return {"Image": repr(image)}
    # Includes the type, because the string "2024-01-01" is not the date.
    content = sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)
    return {type(value).__qualname__: content}


_SIMPLE = frozenset({str, int, bool, type(None)})
"""Types that orjson encodes canonically. Most inputs contain nothing else."""
_encode = json.JSONEncoder(default=_plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode
