"""Extraction of the answer from a model's text: fenced, prefixed, wrapped in reasoning, or slightly broken JSON.

Broken JSON is repaired by the json_repair library. It gets only text that begins like JSON, up to a limit: prose full
of braces takes it quadratic time, on the event loop, and would be turned into an answer that the model never gave.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..core.agent_config import ACTION_FINAL, WRAPPED_ANSWER, InvalidOutput, OutputType
from ..core.json import WRITTEN_JSON
from ..core.schema import JsonSchema, is_object

_BEGINS_LIKE_JSON = re.compile(
    r"""\{\s*(?:"[^"\n]{0,200}"|'[^'\n]{0,200}'|[^\W\d][\w-]{0,100})\s*:"""  # an object, with a first key
    r"""|\[\s*(?:[\[{"']|-?\d)"""  # a list, with a first value
)
_BRACKET = re.compile(r"[\[{]")
_MAX_BRACKETS = 400
_MAX_CHARS = 10_000


def repaired_values(text: str) -> list[Any]:
    """Objects and lists in `text` after repair, in order; empty if it does not look like JSON."""
    opening = _BEGINS_LIKE_JSON.search(text)
    if opening is None:
        return []
    broken = text[opening.start() :]
    if len(broken) > _MAX_CHARS or len(_BRACKET.findall(broken)) > _MAX_BRACKETS:
        return []
    import json_repair  # imported late: few models write broken JSON

    try:
        value = json_repair.loads(broken)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, list):  # a list, or several values that the library returns as one
        return [*(item for item in value if isinstance(item, dict | list)), value]
    return [value] if isinstance(value, dict) else []


_TAG = "(?:think|thinking|reasoning)"
_THOUGHT = re.compile(rf"<{_TAG}>.*?</{_TAG}>", re.DOTALL)
_THOUGHT_START = re.compile(rf"\s*<{_TAG}>")
_THOUGHT_END = re.compile(rf"</{_TAG}>")
# Fences are matched at the start or the end of a line only, where a fence inside a JSON string never is.
_FENCE = re.compile(
    r"^[ \t]*```[\w-]*((?:[^\n`]++|\n(?![ \t]*```)|`(?!``[ \t]*$))*+)(?:\n[ \t]*```|```[ \t]*$|\Z)", re.MULTILINE
)
_OPENING = re.compile(r"""\{(?=\s*(?:["}]|\Z))|\[(?=\s*(?:["\[{\]\dtfnNI-]|\Z))""")

_CLOSING = {"{": "}", "[": "]"}
_TIDIED = re.compile(r""""(?:[^"\\]|\\.)*+"|,(?=\s*(?:[}\]]|\Z))|[\[\]{}]""", re.DOTALL)
_STRUCTURE = re.compile(r""""(?:[^"\\]|\\.)*+"|["\[\]{}]""", re.DOTALL)
_MAX_FAILURES = 1000
"""Broken brackets after which the search for an answer stops."""
_MAX_CANDIDATES = 100
"""Values of one text that are validated; of more, the last ones."""


def find_answer(text: str, output: OutputType, agent_input: Any = None, *, is_whole: bool = True) -> Any:
    """Answer in `text` that fits the output type: from the most literal reading, and the last of several values.
    Raises InvalidOutput with the problem of the most literal reading.

    `is_whole=False`: the text was cut off. Then only complete JSON counts, and only if no other value starts after
    it."""
    problem: InvalidOutput | None = None
    if text.lstrip().startswith("{") and is_object(output.json_schema):  # answers of other types may be wrapped
        with suppress(InvalidOutput):
            return output.validate_json(text, agent_input)
    for value in _answers(text, output, is_whole):
        try:
            return fit(value, output, agent_input)
        except InvalidOutput as error:
            problem = problem or error
    raise problem or InvalidOutput("there is no complete JSON in it")


def fit(value: Any, output: OutputType, agent_input: Any = None) -> Any:
    """Typed answer that `value` is, wraps, or holds as a JSON string. Raises InvalidOutput with the problem of the
    most likely of these."""
    problem: InvalidOutput | None = None
    for candidate in _candidates(value, is_wrapped=not is_object(output.json_schema)):
        try:
            return output.validate(candidate, agent_input)
        except InvalidOutput as error:
            problem = problem or error
    assert problem is not None
    raise problem


def unvalidated_answer(text: str, schema: JsonSchema) -> Any:
    """Answer in `text` of an output type that is known by its schema only: the first that `find_answer` would try; the
    text itself if it holds none."""
    values = (value for found in readings(text) for value in reversed(found))
    found = next(values, text)
    return next(_candidates(found, is_wrapped=not is_object(schema)))


def readings(text: str, *, is_whole: bool = True) -> Iterator[list[Any]]:
    """Readings of `text`, the most literal first; each is a list of values in the order of the text."""
    visible = without_thoughts(text, is_whole=is_whole)
    for literal in (text.strip(), visible):
        for value in _decoded(literal):
            # A number that was cut off is still a number, but a wrong one.
            if is_whole or not isinstance(value, int | float):
                yield [value]
            return
    if not is_whole:
        yield _complete_values(visible, is_whole=False)
        return
    fenced = _FENCE.findall(visible)
    for read in (_literal_values, _tidied_values, repaired_values):
        yield [value for piece in fenced for value in read(piece)]
        yield read(visible)


def without_thoughts(text: str, *, is_whole: bool = True) -> str:
    """`text` without reasoning blocks, also if the opening tag was part of the prompt.

    A block without a closing tag: if the text was cut off, all of it is reasoning; if the model stopped by itself, it
    forgot the tag, and only the opening tag is removed."""
    if "<" not in text:
        return text.strip()
    ends = [end.end() for end in _THOUGHT_END.finditer(text)]
    thought, rest = (text[: ends[-1]], text[ends[-1] :]) if ends else ("", text)
    visible = _THOUGHT_END.split(_THOUGHT.sub("", thought))[-1] + rest
    if start := _THOUGHT_START.match(visible):
        visible = visible[start.end() :] if is_whole else ""
    return visible.strip()


def _answers(text: str, output: OutputType, is_whole: bool) -> Iterator[Any]:
    for values in readings(text, is_whole=is_whole):
        yield from reversed(values[-_MAX_CANDIDATES:])
    visible = without_thoughts(text)
    if is_whole and visible and not is_object(output.json_schema):
        yield visible


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
    """The value of which `text` is the JSON, as a list of one; empty if it is not JSON."""
    try:
        return [WRITTEN_JSON.decode(text)]
    except (ValueError, RecursionError):
        return []


def _literal_values(text: str) -> list[Any]:
    return _decoded(text) or _complete_values(text)


def _tidied_values(text: str) -> list[Any]:
    """Values of `text` without trailing commas and with the missing closing brackets added. Such repairs are exact;
    json_repair would lose text after a quote or a bracket in a string."""
    opening = _OPENING.search(text)  # quotes in the prose before it would be taken for string delimiters
    unclosed: list[str] = []

    def keep(piece: re.Match[str]) -> str:
        lexeme = piece.group()
        if lexeme in _CLOSING:
            unclosed.append(_CLOSING[lexeme])
        elif lexeme in ("}", "]") and unclosed:
            unclosed.pop()
        return "" if lexeme == "," else lexeme

    tidy = _TIDIED.sub(keep, text[opening.start() :]).rstrip() if opening else ""
    return _complete_values(tidy if tidy.endswith(("{", "[")) else tidy + "".join(reversed(unclosed)))


def _complete_values(text: str, *, is_whole: bool = True) -> list[Any]:
    values: list[Any] = []
    position = failures = 0
    while failures < _MAX_FAILURES and (opening := _OPENING.search(text, position)):
        try:
            value, position = WRITTEN_JSON.raw_decode(text, opening.start())
            values.append(value)
        except (ValueError, RecursionError):
            failures += 1
            position = _end_of_value(text, opening.start())
            if not is_whole:
                values.clear()
    return values


def _end_of_value(text: str, start: int) -> int:
    """End of the value that opens at `start`, found by its brackets alone. Values inside a broken value are skipped:
    they are parts of the answer and must not be taken for the answer."""
    depth = 0
    for token in _STRUCTURE.finditer(text, start):
        match token.group():
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
            case '"':  # an unterminated string
                break
        if depth == 0:
            return token.end()
    return len(text)
