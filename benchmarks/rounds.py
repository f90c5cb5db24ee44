"""Measurements in processes of their own, taken in turns."""

import json
import statistics
import subprocess
import sys


def in_own_process(module: str, *words: str) -> dict[str, float]:
    """What `python -m benchmarks.MODULE WORDS` prints, as JSON. Ends the program with its words if it fails."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}
