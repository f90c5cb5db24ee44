"""Inputs at which a run on the simulated engine waits, so that a test can stop it in the middle at any speed."""

import json
from collections.abc import Collection
from pathlib import Path

_STALL = '[[sim: {"fault": "stall", "stall_s": 10, "times": 1}]]'
"""Only the first request is answered late: the run that continues does not wait."""


def write_inputs(path: Path, field: str, values: Collection[str], stalled: Collection[int]) -> None:
    """Writes a JSONL file. Agents of the stalled inputs wait for ten seconds: with as many as run at once, all wait."""
    lines = [
        json.dumps({field: f"{value} {_STALL}" if number in stalled else value}, ensure_ascii=False)
        for number, value in enumerate(values)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
