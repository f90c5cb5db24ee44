"""JSON as models write it: comments, trailing commas, single quotes, bare keys, Python's words, a forgotten end.

Reads what was meant where that is certain and nothing else: guessing would turn prose into answers. It takes time in
proportion to the text, because it runs on the event loop."""

import re
from json import JSONDecoder, dumps
from typing import Any

MOST_FAILURES = 1000
"""A text with more broken brackets than this holds no answer."""

_DECODER = JSONDecoder(strict=False)
_OPENING = re.compile(r"[\[{]")
_CLOSING = {"{": "}", "[": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}

# A quote ends its string only where something may follow that follows a string; any other belongs to the string.
_STRING = r"{0}(?:[^{0}\\]|\\.|{0}(?!\s*(?:[,:}}\]]|//|/\*|\#|\Z)))*+{0}"
_TOKEN = re.compile(
    rf"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|/\*.{{0,1000}}?\*/)
       | (?P<mark>[{{}}\[\],:])
       | (?P<text>{_STRING.format('"')}|{_STRING.format("'")})
       | (?P<key>[^\W\d][\w-]*+)(?=\s*:)
       | (?P<word>(?:-?\d[\d.eE+-]*|true|false|null|True|False|None|NaN|-?Infinity)\b)""",
    re.DOTALL | re.VERBOSE,
)
_STRUCTURE = re.compile(r""""(?:[^"\\]|\\.)*+"|["\[\]{}]""", re.DOTALL)
_ESCAPE = re.compile(r"""\\(?P<known>["\\/bfnrt]|u[0-9a-fA-F]{4})|\\(?P<unknown>.)|\"""", re.DOTALL)


def lenient_values(text: str) -> list[Any]:
    """The objects and arrays in `text`, in order."""
    values: list[Any] = []
    position = failures = 0
    while failures < MOST_FAILURES and (opening := _OPENING.search(text, position)):
        tidy, position = _tidy(text, opening.start())
        try:
            values.append(_DECODER.decode(tidy))
        except (ValueError, RecursionError):
            failures += 1
    return values


def end_of_value(text: str, start: int) -> int:
    """Where the value that opens at `start` ends, going by its brackets alone: what a broken value holds is a part of
    the answer, and must not be taken for the answer."""
    depth = 0
    for token in _STRUCTURE.finditer(text, start):
        match token.group():
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
            case '"':  # a string without an end
                break
        if depth == 0:
            return token.end()
    return len(text)


def _tidy(text: str, start: int) -> tuple[str, int]:
    """The value that opens at `start` as proper JSON, or nothing if it makes no sense; and where it ends."""
    pieces: list[str] = []
    owed: list[str] = []
    position = start
    while token := _TOKEN.match(text, position):
        position = token.end()
        piece = _proper(token)
        if piece in _CLOSING:
            owed.append(_CLOSING[piece])
        elif piece in ("}", "]"):
            _drop_comma(pieces)
            if owed.pop() != piece:
                return "", end_of_value(text, start)
        if piece:
            pieces.append(piece)
        if not owed:
            return "".join(pieces), position
    if position < len(text):
        return "", end_of_value(text, start)
    _drop_comma(pieces)
    return "".join([*pieces, *reversed(owed)]), position


def _drop_comma(pieces: list[str]) -> None:
    if pieces[-1] == ",":
        pieces.pop()


def _proper(token: re.Match[str]) -> str:
    said = token.group()
    match token.lastgroup:
        case "blank":
            return ""
        case "text":
            return '"' + _ESCAPE.sub(_escape, said[1:-1]) + '"'
        case "key":
            return dumps(said)
        case _:
            return _WORDS.get(said, said)


def _escape(match: re.Match[str]) -> str:
    if match["known"]:
        return match.group()
    if match["unknown"]:
        return "'" if match["unknown"] == "'" else "\\\\" + match["unknown"]
    return '\\"'
