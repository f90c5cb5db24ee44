"""Results of all agents, for the table of the page."""

from array import array
from collections.abc import Collection
from typing import Any, get_args

from ...core.requests import FinishReason
from ...core.results import AgentResult
from ..event_codec import MAX_TEXT, answer_preview, input_preview

_FINISHES: tuple[str | None, ...] = (None, *get_args(FinishReason))
_NO_ERROR = -1
_SHORTEST = 24
_MAX_KEPT = 20_000_000
"""Characters of inputs and answers that are kept in memory; of later agents only the shortest texts are."""
_MAX_SHOWN = 1_500_000
"""Characters of all inputs on the page, of all answers, and of all error messages."""


class ResultRows:
    """A row per agent, as in the timeline, stored in columns. Rows of agents in progress are empty."""

    def __init__(self) -> None:
        self._finish = bytearray()
        self._error = array("q")
        self._turns = array("q")
        self._usage = (array("q"), array("q"), array("q"))
        """Input, cached and output tokens."""
        self._seconds = array("d")
        self._inputs: list[str] = []
        self._answers: list[str] = []
        self._errors: dict[tuple[str, str], int] = {}
        """Numbers of the errors: many agents may fail in the same way."""
        self._kept = 0

    def add(self) -> None:
        self._finish.append(0)
        self._error.append(_NO_ERROR)
        for column in (self._turns, *self._usage):
            column.append(0)
        self._seconds.append(0.0)
        self._inputs.append("")
        self._answers.append("")

    def finish(self, row: int, result: AgentResult) -> None:
        """Sets the result of an agent."""
        error = result.error
        self._finish[row] = _FINISHES.index(result.finish) if result.finish in _FINISHES else 0
        self._error[row] = _NO_ERROR if error is None else self._number(error.kind, error.message[:MAX_TEXT])
        self._turns[row] = result.turns
        usage = result.usage
        for column, tokens in zip(self._usage, (usage.input, usage.cached, usage.output), strict=True):
            column[row] = tokens
        self._seconds[row] = round(result.timing.total, 3)
        length = MAX_TEXT if self._kept < _MAX_KEPT else _SHORTEST
        self._inputs[row] = input_preview(result.input)[:length]
        self._answers[row] = answer_preview(result)[:length]
        self._kept += len(self._inputs[row]) + len(self._answers[row])

    def as_json(self, rows: Collection[int]) -> dict[str, Any]:
        """These rows, in this order. The more there are, the shorter are their texts."""
        length = _length(len(rows))
        numbers = {self._error[row] for row in rows}
        used = {number: at for at, number in enumerate(sorted(numbers - {_NO_ERROR}))}
        errors, cut = list(self._errors), _length(len(used))
        tokens_in, cached, tokens_out = self._usage
        return {
            "finishes": list(_FINISHES),
            "errors": [[kind, message[:cut]] for kind, message in (errors[number] for number in used)],
            "finish": [self._finish[row] for row in rows],
            "error": [used.get(self._error[row], _NO_ERROR) for row in rows],
            "turns": [self._turns[row] for row in rows],
            "tokens_in": [tokens_in[row] for row in rows],
            "cached": [cached[row] for row in rows],
            "tokens_out": [tokens_out[row] for row in rows],
            "seconds": [self._seconds[row] for row in rows],
            "input": [self._inputs[row][:length] for row in rows],
            "answer": [self._answers[row][:length] for row in rows],
        }

    def _number(self, kind: str, message: str) -> int:
        return self._errors.setdefault((str(kind), message), len(self._errors))


def _length(texts: int) -> int:
    """Longest text, if there are so many."""
    return max(_SHORTEST, min(MAX_TEXT, _MAX_SHOWN // max(1, texts)))
