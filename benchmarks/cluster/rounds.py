"""Rounds of the cluster benchmark: what was asked for, and what was found."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.rounds import median_of

Numbers = dict[str, Any]
MOST_COMMANDS = 10
"""Of Redis, for an agent of two turns; those that scripts make count too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    workers: tuple[int, ...]
    agents: int | None
    """None: as many as each part has."""
    rounds: int
    ends_at: float
    many: tuple[int, ...] = (32, 100)
    """How many workers, where there are many."""
    per_process: int = 1
    """Of these."""

    def turns(self) -> Iterator[int]:
        """Rounds, for as long as there is time; the first there is in any case."""
        for number in range(self.rounds):
            if number and time.monotonic() > self.ends_at:
                return
            yield number


class Rounds:
    """Of one part; prints each as it comes."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.taken: dict[str, list[Numbers]] = {}

    def add(self, case: str, numbers: Mapping[str, float]) -> None:
        rounded = {name: round(value, 3) for name, value in numbers.items()}
        self.taken.setdefault(case, []).append(rounded)
        shown = ", ".join(f"{name} {value:,.2f}" for name, value in rounded.items())
        print(f"{self._part}, {case}: {shown}", flush=True)

    def medians(self) -> dict[str, Numbers]:
        return {case: dict(median_of(taken)) for case, taken in self.taken.items()}


def target(what: str, found: float, *, least: float | None = None, most: float | None = None) -> Numbers:
    is_met = (least is None or found >= least) and (most is None or found <= most)
    print(f"{what}: {found} ({'met' if is_met else 'MISSED'})", flush=True)
    return {"what": what, "least": least, "most": most, "found": found, "is_met": is_met}


def few_commands(part: str, medians: Mapping[str, Numbers]) -> list[Numbers]:
    """What is wanted of every way that has a Redis."""
    return [
        target(f"{part}: {way}: commands for an agent", found["commands_per_agent"], most=MOST_COMMANDS)
        for way, found in medians.items()
        if "commands_per_agent" in found
    ]
