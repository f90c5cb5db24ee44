"""Results of a peer benchmark with round numbers."""

from typing import Any

from benchmarks.peers.workloads import WORKLOADS

SLOW, FAST = 40.0, 1.0


def one(cpu_s: float, wall_s: float = 2.0, **more: float) -> dict[str, Any]:
    counted = {"failed": 0, "lost": 0, "doubled": 0, "executions": 10, "requests": 100, "peak_mb": 64.0}
    return {"cpu_s": cpu_s, "wall_s": wall_s, "ttft_p50_s": 0.01, **counted, **more}


def sizes(few: float, many: float) -> dict[str, Any]:
    return {"100": {"cpu_us_per_agent": few}, "1000": {"cpu_us_per_agent": many}}


def parts() -> dict[str, Any]:
    """Ours costs a second of CPU, as the expert's does, and the one framework that takes part 40."""
    found: dict[str, Any] = {
        name: {
            "what": workload.what,
            "agents": workload.agents,
            "keys": workload.keys,
            "inflight": workload.inflight,
            "ideal_s": 2.0,
            "medians": {"batch_agent": one(FAST), "expert": one(FAST), "langgraph": one(SLOW, 20.0)},
        }
        for name, workload in WORKLOADS.items()
    }
    for median in found["checkpoint_on"]["medians"].values():
        median["cpu_without_s"] = median["cpu_s"] / 2
    latency = {"batch_agent": {"single": 0.01, "tools": 0.02}, "expert": {"single": 0.01, "tools": 0.02}}
    return found | {
        "lag": {"agents": 10_000, "worst_lag_s": latency},
        "memory": {"kb_per_agent": {"batch_agent": 8.0, "expert": 5.0}},
        "cost": {"by_number_of_agents": {"batch_agent": sizes(300.0, 290.0), "expert": sizes(200.0, 200.0)}},
        "start": {"import_s": 0.1, "names_s": 0.15, "first_s": 0.2},
    }
