"""Whether an agent has become dearer: against benchmarks/results/baseline.json, in a minute or two.

    python -m benchmarks.check [--baseline] [--only calls,cpu]

Two measures. Calls of functions for an agent, which are nearly the same in every run, but depend on the versions of
Python and aiohttp: with others than those of the baseline they are shown and not judged. CPU against the expert's loop,
taken in turns, which holds on other machines, but moves by some percent from run to run. Says what moved, by how much;
ends with 1 where something became dearer than its tolerance. `--baseline` keeps what is found as the new one.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.peers.environments import ROOT, words_of
from benchmarks.peers.runs import measure, servers, work_of
from benchmarks.peers.work import Work
from benchmarks.peers.workloads import AT_ONCE, WORKLOADS, Workload

BASELINE = report.RESULTS / "baseline.json"
OURS, EXPERT = "batch_agent", "expert"
CASES = {
    "single": WORKLOADS["single_2000"],
    "tools": replace(WORKLOADS["checkpoint_off"], keys=10),
    "streamed": replace(WORKLOADS["streaming"], server=AT_ONCE),
    "checkpoint": WORKLOADS["checkpoint_on"],
}
FEW, MANY, ROUNDS = 100, 400, 7
TOLERANCE = {"calls": 0.03, "cpu": 0.12}
Numbers = dict[str, float]


def calls() -> Numbers:
    """For one agent more of each case."""
    found = {}
    for name, case in CASES.items():
        with servers(case) as sims, tempfile.TemporaryDirectory() as scratch:
            few, many = (
                _counted(work_of(replace(case, agents=agents), sims, f"{scratch}/{agents}")) for agents in (FEW, MANY)
            )
        found[name] = round((many - few) / (MANY - FEW), 1)
        print(f"calls: {name}: {found[name]} for an agent", flush=True)
    return found


def cpu() -> Numbers:
    """Ours against the expert's loop, medians of rounds taken in turns."""
    return {name: _ratio(name, replace(case, agents=MANY)) for name, case in CASES.items() if name != "checkpoint"}


PARTS = {"calls": calls, "cpu": cpu}


def versions() -> dict[str, str]:
    """What calls depend on, beside our own code."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("aiohttp", "pydantic")}}


@dataclass(frozen=True, slots=True)
class Move:
    """One number, then and now."""

    part: str
    name: str
    before: float
    now: float

    @property
    def change(self) -> float:
        return self.now / self.before - 1

    @property
    def is_beyond(self) -> bool:
        return abs(self.change) > TOLERANCE[self.part]

    def __str__(self) -> str:
        note = "" if not self.is_beyond else " DEARER" if self.change > 0 else " cheaper: time for a new baseline"
        return f"{self.part}: {self.name}: {self.before} to {self.now} ({self.change:+.1%}){note}"


def moves(before: Mapping[str, Any], now: Mapping[str, Numbers]) -> list[Move]:
    """Of all that is in both. What depends on versions is left out where those are others."""
    parts = [part for part in now if part != "calls" or before["versions"] == versions()]
    return [
        Move(part, name, before[part][name], value)
        for part in parts
        for name, value in now[part].items()
        if name in before.get(part, {})
    ]


def main() -> None:
    asked = _options()
    found: dict[str, Any] = {part: PARTS[part]() for part in asked.only.split(",")}
    if asked.baseline:
        print(report.write("baseline", {"versions": versions(), **found}, asked.file))
        return
    before = json.loads(asked.file.read_text())
    if before["versions"] != versions():
        print(f"calls are not judged: the baseline is of {before['versions']}, this is {versions()}")
    found_moves = moves(before, found)
    print(*found_moves, sep="\n")
    sys.exit(any(move.is_beyond and move.change > 0 for move in found_moves))


def _counted(work: Work) -> int:
    command = [sys.executable, "-m", "benchmarks.peers.call_count", OURS, work.to_json()]
    done = subprocess.run(command, cwd=ROOT, env=words_of(OURS), capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)["calls"])


def _ratio(name: str, case: Workload) -> float:
    taken: dict[str, list[float]] = {OURS: [], EXPERT: []}
    with servers(case) as sims:
        for _ in range(ROUNDS):
            for peer, all_ in taken.items():
                all_.append(measure(peer, case, sims)["cpu_s"])
    ratio = round(statistics.median(taken[OURS]) / statistics.median(taken[EXPERT]), 3)
    print(f"cpu: {name}: {ratio} of the expert's", flush=True)
    return ratio


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description="has an agent become dearer?")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--baseline", action="store_true", help="keep what is found as the baseline")
    parser.add_argument("--file", type=Path, default=BASELINE, help="the baseline")
    return parser.parse_args()


if __name__ == "__main__":
    main()
