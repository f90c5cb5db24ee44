"""What tables of benchmarks are made of."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Json = dict[str, Any]
_SECONDS = "\u00a0s"
"""The unit stays beside its number in a narrow column."""


def results(name: str) -> Json:
    found: Json = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def times(value: float) -> str:
    return f"{value:.2f}x" if value >= 0.1 else f"{value:.1g}x"


def seconds(value: float) -> str:
    return f"{value:.2f}{_SECONDS}" if value < 1 else f"{value:.1f}{_SECONDS}"


def share(value: float) -> str:
    return f"{value:.0%}"


def span(values: Sequence[float], show: Callable[[float], str] = seconds) -> str:
    least, most = show(min(values)), show(max(values))
    if least == most:
        return least
    unit = next((unit for unit in (_SECONDS, "%", "x") if most.endswith(unit)), "")
    return f"{least.removesuffix(unit)} to {most}"
