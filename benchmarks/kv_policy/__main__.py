"""How close the eviction policy of batch-agent-vllm comes to Belady's optimum, and vLLM's own policies.

    PYTHONPATH=packages/batch-agent-vllm/src python -m benchmarks.kv_policy [--quick]

Simulates a host tier of KV blocks under requests as agents make them (trace.py), once alone and then behind a device
whose prefix cache is LRU, as vLLM's native tier is: every block that a request computes is stored at once, and nothing
is stored when the device evicts it. The same requests meet each policy: vLLM's LRU and ARC, ours, and the optimum that
knows the future (optimum.py). Ours gets as its hints

- exact: the true time to the session's next request;
- p75: the 75th percentile of the tool that the session waits for, which is what our client knows;
- rough: that times a random factor, of which a third is above 2.7 or below 1 / 2.7;
- unknown: sessions, endings and one-shots, but no times;
- none: no hints at all.

`of_optimum` is tokens that the tier served as a share of the optimum's; `served` is the share of all prompt tokens that
device and tier served together. Transfers take no time here, and a request takes as long with hits as without.
--quick runs a fifth of it and writes nothing.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from batch_agent_vllm.hints import Hints
from batch_agent_vllm.next_use_policy import NextUsePolicy
from benchmarks import report
from benchmarks.kv_policy.optimum import optimal_hits
from benchmarks.kv_policy.tiers import Arc, HintsOf, Lru, NextUse, Tier, device_hits, host_hits
from benchmarks.kv_policy.trace import BLOCK_TOKENS, Load, Request, agent_trace

DEVICE = 262_144 // BLOCK_TOKENS
"""The KV cache of the H200 runs."""
HOST = 300_000 // BLOCK_TOKENS
"""16 GB of their model."""
CROWDED = Load(sessions=300, sessions_per_s=1.4)
ROOMY = Load(sessions=300, sessions_per_s=0.6)


@dataclass(frozen=True, slots=True)
class Case:
    load: Load
    device: int
    host: int
    seed: int


CASES = {
    "tier alone": Case(CROWDED, 0, HOST, 1),
    "device and tier, crowded": Case(CROWDED, DEVICE, HOST, 1),
    "device and tier, roomy": Case(ROOMY, DEVICE, HOST, 2),
    "device and half the tier, roomy": Case(ROOMY, DEVICE, HOST // 2, 2),
    "device and twice the tier, crowded": Case(CROWDED, DEVICE, 2 * HOST, 1),
}
LEAST = 0.9


def main(quick: bool) -> None:
    with ProcessPoolExecutor(2) as pool:
        found = pool.map(_measure, (_quick(case) if quick else case for case in CASES.values()), CASES)
        cases = dict(zip(CASES, found, strict=True))
    targets = [
        {
            "what": f"{name}: {hints} hints, share of the optimum",
            "least": LEAST,
            "most": None,
            "found": case["policies"][f"ours, {hints}"]["of_optimum"],
            "is_met": case["policies"][f"ours, {hints}"]["of_optimum"] >= LEAST,
        }
        for name, case in cases.items()
        for hints in ("exact", "p75")
    ]
    numbers = {"cases": cases, "cost_us": _cost(), "targets": targets}
    print(numbers["cost_us"])
    if not quick:
        print(report.write("kv_policy", numbers))


def _quick(case: Case) -> Case:
    return replace(case, load=replace(case.load, sessions=case.load.sessions // 5))


def _measure(case: Case, name: str) -> dict[str, Any]:
    trace = agent_trace(case.load, case.seed)
    on_device = device_hits(trace, case.device) if case.device else [0] * len(trace)
    best = optimal_hits(trace, on_device, case.host)
    asked, local = sum(len(one.blocks) for one in trace), sum(on_device)
    print(f"{name}: {len(trace)} requests, device serves {local / asked:.3f}, the best tier {best / asked:.3f}")
    tiers: dict[str, Tier] = {
        "LRU": Lru(case.host),
        "ARC": Arc(case.host),
        **{f"ours, {kind}": NextUse(case.host, _hints(kind)) for kind in ("exact", "p75", "rough", "unknown", "none")},
    }
    policies = {}
    for policy, tier in tiers.items():
        served = host_hits(trace, on_device, tier)
        policies[policy] = {"of_optimum": round(served / best, 3), "served": round((local + served) / asked, 3)}
        print(f"  {name}: {policy:14} {policies[policy]}", flush=True)
    return {
        "requests": len(trace),
        "prompt_tokens": asked * BLOCK_TOKENS,
        "device_tokens": case.device * BLOCK_TOKENS,
        "host_tokens": case.host * BLOCK_TOKENS,
        "served_by_device": round(local / asked, 3),
        "served_at_best": round((local + best) / asked, 3),
        "policies": policies,
    }


def _hints(kind: str) -> HintsOf:
    def predicted(request: Request) -> float | None:
        match kind:
            case "exact":
                return request.pause_s
            case "p75":
                return request.predicted_s
            case "rough" if request.predicted_s is not None:
                return request.predicted_s * Random(request.name).lognormvariate(0.0, 1.0)
            case _:
                return None

    def hints(request: Request) -> Hints:
        if kind == "none":
            return Hints()
        return Hints(
            session=request.session,
            next_use_s=predicted(request),
            drop=request.is_last,
            once=request.is_one_shot,
            shared_tokens=request.shared_tokens,
        )

    return hints


def _cost(sessions: int = 200, blocks: int = 20_000, rounds: int = 10) -> dict[str, float]:
    """Microseconds of the processor for a block, in a full tier, of sessions that take turns."""
    policy: NextUsePolicy[int] = NextUsePolicy()
    each = blocks // sessions
    spent = {"touch": 0.0, "evict and add": 0.0}
    fresh = iter(range(1 << 40))
    chains: list[list[int]] = [[] for _ in range(sessions)]
    random = Random(1)
    for turn in range(sessions * rounds):
        chain = chains[turn % sessions]
        hints, name, now = (
            Hints(session=str(turn % sessions), next_use_s=random.expovariate(0.1)),
            str(turn),
            float(turn),
        )
        policy.arrive(name, hints, now)
        began = time.process_time()
        _add(policy, new := [next(fresh) for _ in range(each)], blocks, now)
        spent["evict and add"] += time.process_time() - began
        chain[:] = [block for block in chain if block in policy] + new
        began = time.process_time()
        policy.touch(name, hints, zip(chain, range(1, len(chain) + 1), strict=True), now)
        spent["touch"] += (time.process_time() - began) * each / len(chain)
        for block in new:
            policy.unpin(block)
        policy.finish(name, hints, now)
    return {what: round(1e6 * seconds / (sessions * rounds * each), 2) for what, seconds in spent.items()}


def _add(policy: NextUsePolicy[int], new: Sequence[int], capacity: int, now: float) -> None:
    excess = len(policy) + len(new) - capacity
    if excess > 0:
        policy.evict(excess, (), now)
    for block in new:
        policy.add(block)


if __name__ == "__main__":
    main("--quick" in sys.argv)
