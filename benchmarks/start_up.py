"""CPU time that importing `batch_agent` takes, for several source trees in turns.

    python -m benchmarks.start_up src ../other/src [--rounds 40]

Medians and lower quartiles in milliseconds, of processes of their own. CPU, not time: the machine may be busy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

_STATEMENTS = ("import batch_agent", "from batch_agent import BatchAgent", "import batch_agent.tools, batch_agent.data")
_CODE = "import time; begun = time.process_time_ns(); {}; print(time.process_time_ns() - begun)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    taken: dict[str, dict[str, list[float]]] = {name: {str(tree): [] for tree in options.trees} for name in _STATEMENTS}
    for _ in range(options.rounds):
        for statement, of_trees in taken.items():
            for tree, times in of_trees.items():
                times.append(_milliseconds(statement, tree))
    summary = {name: {tree: _summary(times) for tree, times in trees.items()} for name, trees in taken.items()}
    print(json.dumps(summary, indent=2))


def _milliseconds(statement: str, tree: str) -> float:
    env = {**os.environ, "PYTHONPATH": tree}
    command = [sys.executable, "-c", _CODE.format(statement)]
    return int(subprocess.run(command, env=env, capture_output=True, check=True).stdout) / 1e6


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(times), 2), "quartile": round(statistics.quantiles(times, n=4)[0], 2)}


if __name__ == "__main__":
    main()
