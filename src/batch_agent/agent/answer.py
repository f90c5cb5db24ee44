"""Finding the answer in what a model wrote: fenced, prefixed, wrapped in thoughts, or slightly broken."""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

import json_repair
import orjson

from ..core.rules import ACTION_FINAL, WRAPPED_ANSWER, InvalidOutput, OutputType

_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_FENCE = re.compile(r"```[\w-]*\s*\n?(.*?)(?:```|\Z)", re.DOTALL)
_OPENING = re.compile(r"[\[{]")
_DECODER = JSONDecoder(strict=False)


def find_answer(text: str, output: OutputType, *, may_repair: bool = True) -> Any:
    """The first reading of `text` that fits. Raises InvalidOutput with the problem of the most literal reading.

    Without `may_repair` only whole JSON counts: closing the brackets of a cut-off answer would invent its end."""
    problem: InvalidOutput | None = None
    for value in readings(text, may_repair=may_repair):
        for candidate in _unwrapped(value):
            try:
                return output.validate(candidate)
            except InvalidOutput as error:
                problem = problem or error
    raise problem or InvalidOutput("there is no JSON in it")


def readings(text: str, *, may_repair: bool = True) -> Iterator[Any]:
    """Every value that `text` can be read as, the most literal first."""
    said = without_thoughts(text)
    try:
        yield orjson.loads(said)
    except orjson.JSONDecodeError:
        pieces = [*reversed(_FENCE.findall(said)), said]
        for piece in pieces:
            yield from reversed(_whole_values(piece))
        if may_repair:
            for piece in pieces:
                yield from _repaired(piece)
        yield said


def without_thoughts(text: str) -> str:
    """`text` without reasoning blocks, also where the opening tag was part of the prompt."""
    said = _THOUGHT.sub("", text)
    return said.rpartition("</think>")[2].strip()


def _unwrapped(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and len(value) == 1:
        for key in (WRAPPED_ANSWER, ACTION_FINAL):
            if key in value:
                yield value[key]
    yield value


def _whole_values(text: str) -> list[Any]:
    values: list[Any] = []
    position = 0
    while match := _OPENING.search(text, position):
        try:
            value, position = _DECODER.raw_decode(text, match.start())
            values.append(value)
        except (JSONDecodeError, RecursionError):
            position = match.start() + 1
    return values


def _repaired(text: str) -> Iterator[Any]:
    opening = _OPENING.search(text)
    if opening is None:
        return
    value = json_repair.loads(text[opening.start() :])
    yield value
    if isinstance(value, list):  # several objects come back as one list
        yield from reversed(value)
