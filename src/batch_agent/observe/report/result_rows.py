"""Results of all agents, for the table of the page."""

from array import array
from collections.abc import Collection
from itertools import repeat
from math import isnan, nan
from typing import Any, get_args

from ...core.requests import FinishReason
from ...core.results import AgentResult
from ..event_codec import MAX_TEXT, answer_preview, input_preview

_FINISHES: tuple[str | None, ...] = (None, *get_args(FinishReason))
_FINISH_CODES = dict(zip(_FINISHES, range(len(_FINISHES)), strict=True))
_NO_ERROR = -1
_NUMBERS = ("finish", "error", "turns", "tokens_in", "cached", "tokens_out", "cost", "seconds")
_WIDTH = len(_NUMBERS)
_SHORTEST = 24
_MAX_LONG = 40_000
"""Number of results whose texts are kept at full length. Later ones are cut to the shortest length."""
_MAX_SHOWN = 1_500_000
"""Maximum characters of all inputs on the page, and likewise of all answers and of all error messages."""


class ResultRows:
    """One row per agent, in the order of the timeline. Rows of agents in progress are empty. Numbers are stored in one
    array: about 60 bytes per agent, plus its texts."""

    def __init__(self) -> None:
        self._at = array("q")
        """Number of the last result of each row; -1: none."""
        self._numbers = array("d")
        self._texts: list[tuple[str, str]] = []
        """Inputs and answers."""
        self._count = 0
        self._errors: dict[tuple[str, str], int] = {}
        """Number of each distinct error, because many agents may fail in the same way."""

    def add(self) -> None:
        self._at.append(-1)

    def finish(self, row: int, result: AgentResult, cost: float | None = None) -> None:
        """Sets the result of an agent. `cost`: in dollars; None if the price is unknown."""
        self._at[row] = count = self._count
        self._count += 1
        error, usage = result.error, result.usage
        number = _NO_ERROR if error is None else self._number(error.kind, error.message[:MAX_TEXT])
        finish, dollars = _FINISH_CODES[result.finish], nan if cost is None else cost
        self._numbers.extend(
            (finish, number, result.turns, usage.input, usage.cached, usage.output, dollars, result.timing.total)
        )
        length = MAX_TEXT if count < _MAX_LONG else _SHORTEST
        self._texts.append((input_preview(result.input)[:length], answer_preview(result)[:length]))

    def as_json(self, rows: Collection[int]) -> dict[str, Any]:
        """These rows, in this order. Texts are cut shorter as the number of rows grows."""
        at = [self._at[row] for row in rows]
        columns: dict[str, list[Any]] = {name: self._column(number, at) for number, name in enumerate(_NUMBERS)}
        # Rounds as in the log and then to milliseconds, without a call per agent.
        columns["seconds"] = [((each * 1e4 + 0.5) // 1 / 10 + 0.5) // 1 / 1e3 for each in columns["seconds"]]
        columns["cost"] = [None if isnan(each) else each for each in columns["cost"]]
        for name in _NUMBERS[:-2]:
            columns[name] = list(map(int, columns[name]))
        errors, columns["error"] = self._used_errors(columns["error"])
        length = _length(len(at))
        return {
            "finishes": list(_FINISHES),
            "errors": errors,
            **columns,
            "input": [self._texts[each][0][:length] if each >= 0 else "" for each in at],
            "answer": [self._texts[each][1][:length] if each >= 0 else "" for each in at],
        }

    def _column(self, number: int, at: list[int]) -> list[float]:
        missing = _NO_ERROR if _NUMBERS[number] == "error" else 0
        return [self._numbers[each * _WIDTH + number] if each >= 0 else missing for each in at]

    def _used_errors(self, numbers: list[float]) -> tuple[list[list[str]], list[float]]:
        """The distinct errors of these agents, and the index of each agent's error among them."""
        used = dict.fromkeys(sorted(set(numbers) - {_NO_ERROR}))
        length, errors = _length(len(used)), list(self._errors)
        shown = [[kind, message[:length]] for kind, message in (errors[int(number)] for number in used)]
        indices = dict(zip(used, range(len(used)), strict=True))
        return shown, list(map(indices.get, numbers, repeat(_NO_ERROR)))

    def _number(self, kind: str, message: str) -> int:
        return self._errors.setdefault((str(kind), message), len(self._errors))


def _length(texts: int) -> int:
    """Maximum length of each text, given their number."""
    return max(_SHORTEST, min(MAX_TEXT, _MAX_SHOWN // max(1, texts)))
