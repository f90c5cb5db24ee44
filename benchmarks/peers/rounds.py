"""All peers at one workload, taken in turns."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from batch_agent.sim import SimServer
from benchmarks.peers.environments import NotThere
from benchmarks.peers.ideal import ideal_s
from benchmarks.peers.participants import CHECKPOINTS, PEERS, TOOLS
from benchmarks.peers.runs import Broken, Numbers, measure, servers
from benchmarks.peers.workloads import Workload

_MOST_WORDS = 200
_SHOWN = {"wall_s": 3, "cpu_s": 3, "peak_mb": 0, "ttft_p50_s": 4}
_SHOWN |= dict.fromkeys(("requests", "executions", "failed", "lost", "doubled"), 0)


def compared(name: str, workload: Workload, peers: Sequence[str], rounds: int) -> Numbers:
    """Medians of each that can do it."""
    able = [peer for peer in peers if workload.kind in PEERS[peer].does]
    taken, left_out = _taken(name, workload, able, rounds)
    return {
        "what": workload.what,
        "agents": workload.agents,
        "turns": workload.turns,
        "inflight": workload.inflight,
        "keys": workload.keys if workload.tool_s is not None else None,
        "ideal_s": ideal_s(workload),
        "medians": {peer: medians(taken[peer]) for peer in able if peer in taken and peer not in left_out},
        "left_out": left_out,
        "all_rounds": taken,
    }


def _taken(
    name: str, workload: Workload, able: Sequence[str], rounds: int
) -> tuple[dict[str, list[Numbers]], dict[str, str]]:
    """Rounds of each, and why some have none. The order turns around with every round."""
    taken: dict[str, list[Numbers]] = {}
    left_out: dict[str, str] = {}
    with servers(workload) as sims:
        for number in range(rounds):
            for peer in [each for each in able[:: 1 - number % 2 * 2] if each not in left_out]:
                try:
                    found = _rounded(_measured(peer, workload, sims))
                except (NotThere, Broken) as error:
                    print(f"{name}: {peer} is left out: {error}", flush=True)
                    left_out[peer] = str(error).splitlines()[-1][:_MOST_WORDS]
                else:
                    taken.setdefault(peer, []).append(found)
                    print(_line(name, peer, found), flush=True)
    return taken, left_out


def _measured(peer: str, workload: Workload, sims: Sequence[SimServer]) -> Numbers:
    """With a checkpoint, beside the same without one a moment before: the machine may be another in ten minutes."""
    if workload.kind != CHECKPOINTS:
        return measure(peer, workload, sims)
    without = measure(peer, replace(workload, kind=TOOLS), sims)
    return measure(peer, workload, sims) | {"cpu_without_s": without["cpu_s"]}


def medians(taken: Sequence[Numbers]) -> Numbers:
    """Of what is a number in all rounds; the first words of what failed are kept."""
    words = next((one["first_words"] for one in taken if one.get("first_words")), None)
    names = [name for name in taken[0] if all(isinstance(one.get(name), int | float) for one in taken)]
    found = {name: round(statistics.median(one[name] for one in taken), 4) for name in names}
    return found if words is None else {**found, "first_words": words}


def parted(value: str | None, known: Iterable[str], what: str) -> list[str]:
    """`a,b` of the command line. Raises SystemExit for a name that nobody knows."""
    names = list(known)
    if value is None:
        return names
    wanted = value.split(",")
    if unknown := [name for name in wanted if name not in names]:
        raise SystemExit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(names)}")
    return wanted


def _rounded(numbers: Numbers) -> Numbers:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}


def _line(name: str, peer: str, found: dict[str, Any]) -> str:
    cells = [f"{column} {found[column]:.{digits}f}" for column, digits in _SHOWN.items() if column in found]
    words = f"  {found['first_words']}" if found.get("first_words") else ""
    return f"{name:>15} {peer:>18}  " + "  ".join(cells) + words
