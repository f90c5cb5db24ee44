"""How the last requests went: whether trouble is one request's own, or everybody's."""

from dataclasses import dataclass

_REMEMBERED = 40
"""Requests. Few, so that a server which begins to refuse is believed soon; more than a spell of bad luck lasts."""
_SOME = 3
"""Fewer that went wrong show nothing: one of one is all of them."""


@dataclass(slots=True)
class Outcomes:
    """Counts what went well and what went wrong, and forgets."""

    _good: float = 0.0
    _bad: float = 0.0

    def went_well(self) -> None:
        self._good += 1
        self._forget()

    def went_wrong(self) -> None:
        self._bad += 1
        self._forget()

    @property
    def share_of_trouble(self) -> float:
        return self._bad / (self._bad + self._good) if self._bad >= _SOME else 0.0

    def _forget(self) -> None:
        if self._good + self._bad > _REMEMBERED:
            self._good /= 2
            self._bad /= 2
