"""What only we promise: a loop that answers, agents that are small while they wait, a cost that does not grow, a start
that nobody notices. Beside the expert's loop, where it has the same."""

import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.peers.environments import ROOT, python_of, words_of
from benchmarks.peers.participants import TOOLS
from benchmarks.peers.rounds import medians
from benchmarks.peers.runs import Numbers, measure, servers
from benchmarks.peers.work import TASK
from benchmarks.peers.workloads import AT_ONCE, WORKLOADS, Workload

OURS, EXPERT = "batch_agent", "expert"
CROWD = 10_000
SIZES = (100, 1_000, 10_000, 100_000)
FEW, MANY = 1_000, 9_000
_STARTS = 9
_SINGLE = WORKLOADS["single_10000"]
_TOOLS = Workload("two turns, a tool of 200 ms", TOOLS, AT_ONCE, CROWD, 64, 10, 0.2)
# Each agent is in a call of its own: there are as many keys as there are checksums of prompts.
_WAITING = Workload("all wait for their tools", TOOLS, AT_ONCE, MANY, 64, 2**32, 0.0)


def lag(rounds: int, share: float) -> Numbers:
    """The longest time for which the loop did nothing else, with 10,000 agents."""
    cases = {"single": _SINGLE.scaled(share), "tools": _TOOLS.scaled(share)}
    found: Numbers = {"agents": cases["single"].agents, "worst_lag_s": {}, "worst_busy_s": {}}
    for name, workload in cases.items():
        with servers(workload) as sims:
            taken = [(peer, measure(peer, workload, sims, "--lag")) for peer in (OURS, EXPERT) * rounds]
        for what in ("worst_lag_s", "worst_busy_s"):
            for peer in (OURS, EXPERT):
                worst = statistics.median(one[what] for who, one in taken if who == peer)
                found[what].setdefault(peer, {})[name] = round(worst, 4)
    print(f"lag: {found}", flush=True)
    return found


def memory(rounds: int, share: float) -> Numbers:
    """Kilobytes for one agent more that waits for its tool, less the text that is its own."""
    sizes = [max(round(size * share), 20) for size in (FEW, MANY)]
    found: dict[str, list[float]] = {OURS: [], EXPERT: []}
    with servers(_WAITING) as sims:
        for _ in range(rounds):
            for peer, taken in found.items():
                few, many = (measure(peer, replace(_WAITING, agents=size), sims, holds=True) for size in sizes)
                taken.append((many["waiting_kb"] - few["waiting_kb"]) / (sizes[1] - sizes[0]) - len(TASK) / 1024)
                print(f"memory: {peer}: {taken[-1]:.2f} kB for an agent that waits", flush=True)
    return {"agents": sizes, "kb_per_agent": {peer: round(statistics.median(all_), 2) for peer, all_ in found.items()}}


def cost(rounds: int, share: float) -> Numbers:
    """CPU for an agent of one turn, in batches of several sizes."""
    sizes = [max(round(size * share), 10) for size in SIZES]
    found: dict[str, dict[str, Numbers]] = {OURS: {}, EXPERT: {}}
    with servers(_SINGLE) as sims:
        for size in sizes:
            workload = replace(_SINGLE, agents=size)
            taken = [(peer, measure(peer, workload, sims)) for peer in (OURS, EXPERT) * rounds]
            for peer, by_size in found.items():
                one = medians([one for who, one in taken if who == peer])
                by_size[str(size)] = {
                    "cpu_us_per_agent": round(one["cpu_s"] / size * 1e6, 1),
                    "peak_mb": one["peak_mb"],
                }
            print(f"cost: {size} agents: {[each[str(size)] for each in found.values()]}", flush=True)
    return {"by_number_of_agents": found}


def start(rounds: int, share: float) -> Numbers:
    """Seconds, in an environment without extras: for `import batch_agent`, with the names that a run needs, and until a
    first answer is there."""
    with servers(_SINGLE) as sims:
        _started(sims[0].url)  # compiles what is not yet
        taken = [_started(sims[0].url) for _ in range(max(round(_STARTS * share), 1) * rounds)]
    found = {
        name: statistics.median(one[at] for one in taken) for at, name in enumerate(("import_s", "names_s", "first_s"))
    }
    print(f"start: {found}", flush=True)
    return {name: round(value, 4) for name, value in found.items()}


_START = """
import sys, time
began = time.perf_counter()
import batch_agent
imported = time.perf_counter()
from batch_agent import BatchAgent
named = time.perf_counter()
[result] = BatchAgent.run_sync(task="Say {it}", inputs=["a word"], backend=sys.argv[1], model="sim", progress=False)
assert result.ok, result.error
print(imported - began, named - began, time.perf_counter() - began)
"""


def _started(url: str) -> Sequence[float]:
    command = [str(python_of("bare")), "-c", _START, url]
    done = subprocess.run(command, cwd=ROOT, env=words_of("bare"), capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


ALONE: dict[str, Callable[[int, float], Numbers]] = {"lag": lag, "memory": memory, "cost": cost, "start": start}
