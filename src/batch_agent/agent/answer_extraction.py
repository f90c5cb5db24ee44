"""Finding the answer in what a model wrote: fenced, prefixed, wrapped in thoughts, or slightly broken.

Broken JSON, mended by a library. It is asked only about what begins like JSON, and only about so much of it: prose
full of braces takes it quadratic time, on the event loop, and would come back as an answer that nobody gave.
"""

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

from ..core.agent_config import ACTION_FINAL, WRAPPED_ANSWER, InvalidOutput, OutputType
from ..core.schema import is_object

_BEGINS_LIKE_JSON = re.compile(
    r"""\{\s*(?:"[^"\n]{0,200}"|'[^'\n]{0,200}'|[^\W\d][\w-]{0,100})\s*:"""  # an object, with a first key
    r"""|\[\s*(?:[\[{"']|-?\d)"""  # a list, with a first value
)
_BRACKET = re.compile(r"[\[{]")
_MOST_BRACKETS = 400
_MOST_CHARACTERS = 10_000


def repaired_values(text: str) -> list[Any]:
    """The objects and lists that `text` was meant to hold, in order."""
    opening = _BEGINS_LIKE_JSON.search(text)
    if opening is None:
        return []
    broken = text[opening.start() :]
    if len(broken) > _MOST_CHARACTERS or len(_BRACKET.findall(broken)) > _MOST_BRACKETS:
        return []
    import json_repair  # few models write broken JSON

    try:
        value = json_repair.loads(broken)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, list):  # a list, or several values that come back as one
        return [*(item for item in value if isinstance(item, dict | list)), value]
    return [value] if isinstance(value, dict) else []


_TAG = "(?:think|thinking|reasoning)"
_THOUGHT = re.compile(rf"<{_TAG}>.*?</{_TAG}>", re.DOTALL)
_THOUGHT_START = re.compile(rf"\s*<{_TAG}>")
_THOUGHT_END = re.compile(rf"</{_TAG}>")
# From the start of a line to the start or the end of one: a fence inside a JSON string is never there.
_FENCE = re.compile(r"^[ \t]*```[\w-]*(.*?)(?:^[ \t]*```|```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"""\{(?=\s*(?:["}]|\Z))|\[(?=\s*(?:["\[{\]\dtfnNI-]|\Z))""")
_DECODER = JSONDecoder(strict=False)

_CLOSING = {"{": "}", "[": "]"}
_TIDIED = re.compile(r""""(?:[^"\\]|\\.)*+"|,(?=\s*(?:[}\]]|\Z))|[\[\]{}]""", re.DOTALL)
_STRUCTURE = re.compile(r""""(?:[^"\\]|\\.)*+"|["\[\]{}]""", re.DOTALL)
_MOST_FAILURES = 1000
"""A text with more broken brackets than this holds no answer."""
_MOST_CANDIDATES = 100
"""Of more values than this in one text only the last are held against the output type."""


def find_answer(text: str, output: OutputType, *, is_whole: bool = True) -> Any:
    """The answer that fits: the most literal reading of `text`, and of several values the last. Raises InvalidOutput
    with the problem of the most literal one.

    A text that is not whole was cut off: then only complete JSON counts, and only if nothing was begun after it."""
    problem: InvalidOutput | None = None
    for value in _answers(text, output, is_whole):
        try:
            return fit(value, output)
        except InvalidOutput as error:
            problem = problem or error
    raise problem or InvalidOutput("there is no complete JSON in it")


def fit(value: Any, output: OutputType) -> Any:
    """The typed answer that `value` is, wraps or quotes. Raises InvalidOutput with the problem of the likeliest."""
    problem: InvalidOutput | None = None
    for candidate in _candidates(value, is_wrapped=not is_object(output.json_schema)):
        try:
            return output.validate(candidate)
        except InvalidOutput as error:
            problem = problem or error
    assert problem is not None
    raise problem


def readings(text: str, *, is_whole: bool = True) -> Iterator[list[Any]]:
    """What `text` can be read as, the most literal first; each reading is its values in the order of the text."""
    said = without_thoughts(text, is_whole=is_whole)
    for literal in (text.strip(), said):
        for value in _decoded(literal):
            # Where a number was cut off it is still a number, but another one.
            if is_whole or not isinstance(value, int | float):
                yield [value]
            return
    if not is_whole:
        yield _whole_values(said, is_whole=False)
        return
    fenced = _FENCE.findall(said)
    for read in (_literal_values, _tidied_values, repaired_values):
        yield [value for piece in fenced for value in read(piece)]
        yield read(said)


def without_thoughts(text: str, *, is_whole: bool = True) -> str:
    """`text` without reasoning blocks, also where the opening tag was part of the prompt. One that never ends is all
    there is of a text that was cut off; where the model stopped by itself, it forgot the tag."""
    if "<" not in text:
        return text.strip()
    ends = [end.end() for end in _THOUGHT_END.finditer(text)]
    thought, rest = (text[: ends[-1]], text[ends[-1] :]) if ends else ("", text)
    said = _THOUGHT_END.split(_THOUGHT.sub("", thought))[-1] + rest
    if start := _THOUGHT_START.match(said):
        said = said[start.end() :] if is_whole else ""
    return said.strip()


def _answers(text: str, output: OutputType, is_whole: bool) -> Iterator[Any]:
    for values in readings(text, is_whole=is_whole):
        yield from reversed(values[-_MOST_CANDIDATES:])
    said = without_thoughts(text)
    if is_whole and said and not is_object(output.json_schema):
        yield said


def _candidates(value: Any, *, is_wrapped: bool) -> Iterator[Any]:
    options = [value]
    for key in (WRAPPED_ANSWER, ACTION_FINAL):
        if isinstance(value, dict) and list(value) == [key]:
            options.insert(0 if is_wrapped else 1, value[key])
    for option in options:
        yield option
        if isinstance(option, str):
            yield from _decoded(option)


def _decoded(text: str) -> list[Any]:
    """The one value that `text` is, or none."""
    try:
        return [_DECODER.decode(text)]
    except (ValueError, RecursionError):
        return []


def _literal_values(text: str) -> list[Any]:
    return _decoded(text) or _whole_values(text)


def _tidied_values(text: str) -> list[Any]:
    """Without commas that nothing follows, and with the brackets that the end lacks: exactly what was meant. The
    library behind `repaired_values` would lose text after a quote or a bracket in a string."""
    opening = _OPENING.search(text)  # quotes in the prose before it would be taken for those of strings
    owed: list[str] = []

    def keep(piece: re.Match[str]) -> str:
        said = piece.group()
        if said in _CLOSING:
            owed.append(_CLOSING[said])
        elif said in ("}", "]") and owed:
            owed.pop()
        return "" if said == "," else said

    tidy = _TIDIED.sub(keep, text[opening.start() :]).rstrip() if opening else ""
    return _whole_values(tidy if tidy.endswith(("{", "[")) else tidy + "".join(reversed(owed)))


def _whole_values(text: str, *, is_whole: bool = True) -> list[Any]:
    values: list[Any] = []
    position = failures = 0
    while failures < _MOST_FAILURES and (opening := _OPENING.search(text, position)):
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
            values.append(value)
        except (ValueError, RecursionError):
            failures += 1
            position = _end_of_value(text, opening.start())
            if not is_whole:
                values.clear()
    return values


def _end_of_value(text: str, start: int) -> int:
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
