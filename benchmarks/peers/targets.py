"""What was wanted before it was measured, and what was found."""

from collections.abc import Iterator, Mapping

from benchmarks.peers.participants import PEERS
from benchmarks.peers.runs import Numbers

EXPERT_CPU, EXPERT_WALL, IDEAL_WALL, FRAMEWORK_CPU = 1.3, 1.03, 1.1, 15
LAG_S, WAITING_KB, FIRST_S, IMPORT_S = 0.05, 10, 0.3, 0.15
FLAT = 1.2
"""The dearest agent of a batch of 100 to 100,000, against the cheapest."""
WAITING = ("one_key_50", "one_key_200", "ten_keys_64", "ten_keys_256", "slow_tool")
NOT_FOR_CPU = ("checkpoint_on", "four_endpoints")
_OURS = "batch_agent"


def targets(parts: Mapping[str, Numbers]) -> list[Numbers]:
    """Those for which there are numbers."""
    compared = {name: part for name, part in parts.items() if _OURS in part.get("medians", {})}
    return [one for name, part in compared.items() for one in _compared(name, part)] + list(_alone(parts))


def _compared(name: str, part: Numbers) -> Iterator[Numbers]:
    found = part["medians"]
    ours, expert = found[_OURS], found.get("expert")
    if expert and name not in NOT_FOR_CPU:
        yield _target(f"{name}: CPU / expert", _ratio(ours["cpu_s"], expert["cpu_s"]), most=EXPERT_CPU)
    if name in WAITING:
        if expert:
            yield _target(f"{name}: wall / expert", _ratio(ours["wall_s"], expert["wall_s"]), most=EXPERT_WALL)
        yield _target(f"{name}: wall / ideal", _ratio(ours["wall_s"], part["ideal_s"]), most=IDEAL_WALL)
    theirs = {peer: one["cpu_s"] for peer, one in found.items() if PEERS[peer].is_framework and not one["failed"]}
    if theirs and name not in NOT_FOR_CPU:
        least = min(theirs, key=lambda peer: theirs[peer])
        yield _target(f"{name}: CPU of {least} / ours", _ratio(theirs[least], ours["cpu_s"]), least=FRAMEWORK_CPU)
    yield _target(f"{name}: failed, lost, doubled", sum(ours[what] for what in ("failed", "lost", "doubled")), most=0)


def _alone(parts: Mapping[str, Numbers]) -> Iterator[Numbers]:
    if "lag" in parts:
        worst = max(parts["lag"]["worst_lag_s"][_OURS].values())
        yield _target(f"worst lag of the loop at {parts['lag']['agents']:,} agents, s", worst, most=LAG_S)
    if "memory" in parts:
        yield _target("memory of a waiting agent, kB", parts["memory"]["kb_per_agent"][_OURS], most=WAITING_KB)
    if "cost" in parts:
        costs = [one["cpu_us_per_agent"] for one in parts["cost"]["by_number_of_agents"][_OURS].values()]
        yield _target("CPU of an agent, dearest batch / cheapest", _ratio(max(costs), min(costs)), most=FLAT)
    if "start" in parts:
        yield _target("import and first answer, s", parts["start"]["first_s"], most=FIRST_S)
        yield _target("import batch_agent, s", parts["start"]["import_s"], most=IMPORT_S)


def _target(what: str, found: float, *, least: float | None = None, most: float | None = None) -> Numbers:
    is_met = (least is None or found >= least) and (most is None or found <= most)
    return {"what": what, "least": least, "most": most, "found": found, "is_met": is_met}


def _ratio(one: float, other: float) -> float:
    return round(one / other, 3)
