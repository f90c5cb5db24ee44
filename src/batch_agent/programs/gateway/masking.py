"""What differs between agents and means the same, such as the path of a folder: hidden from the model behind one text
for all of them, put back in what it says."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ...core.json import dumps, loads

_WORD = re.compile(r"[A-Za-z0-9_]\Z")


class Mask:
    """`hide` for what the model reads, `show` for what it says; `show` undoes `hide` wherever the masks themselves are
    not in the text. Of two texts behind one mask, the first is put back."""

    def __init__(self, hides: Mapping[str, str]) -> None:
        self.hides = {real: mask for real, mask in hides.items() if real and mask}
        first: dict[str, str] = {}
        for real, mask in self.hides.items():
            first.setdefault(mask, real)
        self.hide = TextReplacer(self.hides)
        self.show = TextReplacer(first)


class TextReplacer:
    """Replaces texts by others, the longest first, all in one pass: what was put in is not replaced again."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table
        self._escaped = {_inside(old): _inside(new) for old, new in table.items()}
        self._pattern = _pattern(table.items())
        self._json_pattern = _pattern(self._escaped.items())

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._table[found[0]], text) if self._table else text

    def data(self, value: Any) -> Any:
        """JSON's values, with all texts in them. Raises RecursionError."""
        if not self._table:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.data(item) for key, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, list) else value

    def json(self, text: str) -> str:
        """JSON as a text: nothing else of it changes, if that can be. What is no JSON is taken for an ordinary text in
        which some things are escaped."""
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
        return plain if _says(plain, wanted) else dumps(wanted).decode()


def _says(text: str, value: Any) -> bool:
    try:
        return bool(loads(text) == value)
    except ValueError:
        return False


def _pattern(pairs: Iterable[tuple[str, str]]) -> re.Pattern[str]:
    """Where both texts end in a letter or a digit, no further one may follow: /work/1 is not the beginning of
    /work/10."""
    longest_first = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)
    return re.compile(
        "|".join(
            re.escape(old) + (r"(?![A-Za-z0-9_])" if _WORD.search(old) and _WORD.search(new) else "")
            for old, new in longest_first
        )
    )


def _inside(text: str) -> str:
    """As it stands between the quotes of JSON."""
    return orjson.dumps(text).decode()[1:-1]
