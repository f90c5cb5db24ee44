"""Masking of strings that differ between agents, such as directory paths, so that prompts share a prefix. The model
reads the same string for all agents; in its replies, the agent's own string is restored."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ...core.json import dumps, loads

_WORD = re.compile(r"[A-Za-z0-9_]\Z")


class Mask:
    """`hide` replaces strings for the model, and `show` restores them in its replies. `show` reverses `hide` unless the
    text contains a mask of its own. If two strings have the same mask, the first is restored."""

    def __init__(self, hides: Mapping[str, str]) -> None:
        self.hides = {real: mask for real, mask in hides.items() if real and mask}
        first: dict[str, str] = {}
        for real, mask in self.hides.items():
            first.setdefault(mask, real)
        self.hide = TextReplacer(self.hides)
        self.show = TextReplacer(first)


class TextReplacer:
    """Replaces strings in one pass, longest match first. Inserted text is not replaced again."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table
        self._escaped = {_escape(old): _escape(new) for old, new in table.items()}
        self._pattern = _pattern(table.items())
        self._json_pattern = _pattern(self._escaped.items())

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._table[found[0]], text) if self._table else text

    def data(self, value: Any) -> Any:
        """Replaces in all strings of a JSON value. Raises RecursionError."""
        if not self._table:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.data(item) for key, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, list) else value

    def json(self, text: str) -> str:
        """Replaces in JSON text and keeps its formatting if possible. Invalid JSON is treated as text with JSON
        escapes."""
        if not self._table or ("\\" not in text and not self._pattern.search(text)):
            return text
        plain = self._json_pattern.sub(lambda found: self._escaped[found[0]], text)
        try:
            value = loads(text)
            wanted = self.data(value)
        except (ValueError, RecursionError):
            return plain
        if wanted == value:
            return text
        return plain if _parses_to(plain, wanted) else dumps(wanted).decode()


def _parses_to(text: str, value: Any) -> bool:
    try:
        return bool(loads(text) == value)
    except ValueError:
        return False


def _pattern(pairs: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """Pattern of the strings to replace. If a string and its mask end in a letter or digit, no other may follow:
    /work/1 is not a prefix of /work/10."""
    longest_first = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)
    return re.compile(
        "|".join(
            re.escape(old) + (r"(?![A-Za-z0-9_])" if _WORD.search(old) and _WORD.search(new) else "")
            for old, new in longest_first
        )
    )


def _escape(text: str) -> str:
    """The string as it is written between the quotes of JSON."""
    return orjson.dumps(text).decode()[1:-1]
