"""What saturates first with 1,000 GPUs and a billion rows: `python -m benchmarks.cluster.capacity`, some minutes.

A simulation in virtual time (benchmarks/cluster/simulation.py) with measured constants: what Redis, a client and the
caller need is from benchmarks/results/cluster.json and cluster_workers.json, all of one slow machine; what a GPU does
is from gpu_peers.json and gpu_workers.json. It is checked against real runs of up to 16 workers, then asked about more.
"""

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from statistics import linear_regression
from typing import Any

from batch_agent.cluster.shared_limits import renewal_interval
from batch_agent.cluster.submitter import _MAX_OUTSTANDING
from benchmarks import report
from benchmarks.cluster.simulation import Cluster, Costs, Outcome, Simulation, Work
from benchmarks.render.cells import results

GPUS = 1_000
ROWS = 1_000_000_000
HOSTS = {"measured": 1.0, "twice as fast": 2.0}
"""Speeds of the CPUs, of the machine that was measured."""
MOST_GPUS = 64
"""That are simulated."""
ENOUGH = 0.95
"""Share of its time that something may be busy."""
BYTES_PER_TOKEN = 4
REDIS_BYTES = 512e9
"""Memory of a large server."""
_OF_ONE_PROCESS = ("command_s", "redis_agent_s", "caller_s")
_LEASE_S = 15.0
_INTERVAL_S = 0.5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Work, its text in tokens, and how many seconds of it are simulated."""

    work: Work
    tokens: int
    warm_up_s: float
    seconds: float
    gpus: int
    """As many as leave Redis and the caller time."""
    gpus_per_worker: int
    """In the layout with fewer workers: as many as one client has the CPU for, up to a node's eight."""


def measured_costs() -> Costs:
    """Of the machine that all of them were measured on; presence is that of few workers."""
    runs, many = results("cluster")["parts"], results("cluster_workers")["parts"]["many-workers"]["medians"]
    alone = runs["cost"]["medians"]["Redis"]
    # Few agents share a message here, as where workers wait for their model.
    calls, none = (runs["commands"]["medians"][f"light: 1 workers, {name}"] for name in ("own calls", "no calls"))
    apart = runs["scaling-cpu"]["medians"]["ours, caller apart x4"]
    presence = many["idle x16"]
    spread = many["busy x16"]
    # Two equations: agents that share their messages, and agents that do not.
    shared_messages = runs["cost"]["commands"]["Redis"]["evalsha"]
    in_wall = 16 / spread["agents_per_s"]
    own_messages = spread["messages_per_agent"] - presence["messages_per_worker_s"] * in_wall
    own_commands = spread["commands_per_agent"] - presence["commands_per_worker_s"] * in_wall
    message = (own_commands - alone["commands_per_agent"]) / (own_messages - shared_messages)
    scaling = (one for part in ("scaling-cpu", "scaling-latency") for one in runs[part]["medians"].values())
    priced = [*runs["cost"]["medians"].values(), *scaling, spread]
    known = [one for one in priced if "commands_per_agent" in one]
    command_us, agent_us = linear_regression(
        [one["commands_per_agent"] for one in known], [one["redis_cpu_us_per_agent"] for one in known]
    )
    return Costs(
        command_s=command_us * 1e-6,
        redis_agent_s=agent_us * 1e-6,
        agent_commands=own_commands - message * own_messages,
        message_commands=message,
        claim_commands=calls["for_agents"] - none["for_agents"],
        presence_commands=presence["commands_per_worker_s"],
        client_s=alone["cpu_us_per_agent"] * 1e-6 / 2,
        caller_s=apart["caller_cpu_s"] / _agents(runs["scaling-cpu"], 4),
    )


def cases() -> Mapping[str, Case]:
    """Two that were measured on one H200."""
    peers, alone = results("gpu_peers")["parts"]["peers"], results("gpu_workers")["parts"]["workers"]["alone"]
    engine, crowd = results("workers")["engine"], results("workers")["works"]["crowd"]
    step_s = engine["step_base_ms"] / 1e3
    setup, whole = peers["setup"], peers["whole"]["medians"]["batch_agent"]
    row_s = whole["wall_s"] / setup["agents"] * setup["inflight"]
    rows = Work(1, setup["inflight"], step_s * setup["output"], row_s, setup["inflight"])
    fit = engine["num_blocks"] * engine["block_size"] // crowd["first_prompt"] + 4  # they share a part of their prompt
    tool_s = sum(crowd["tool_s"]) / 2
    agent_s = fit * alone["wall_s"] / crowd["agents"]
    turn_s = (agent_s - (crowd["turns"] - 1) * tool_s) / crowd["turns"]
    asking = fit * crowd["turns"] * turn_s / agent_s
    answer = crowd["answer_tokens"]
    agents = Work(crowd["turns"], fit, step_s * answer, turn_s, asking, tool_s, has_claims=True)
    row_tokens = (whole["prompt_tokens"] + whole["generation_tokens"]) // setup["agents"]
    agent_tokens = crowd["first_prompt"] + crowd["turns"] * (answer + crowd["result_tokens"])
    return {"rows": Case(rows, row_tokens, 5.0, 10.0, 4, 4), "agents": Case(agents, agent_tokens, 40.0, 40.0, 64, 8)}


def with_presence(costs: Costs, workers: int) -> Costs:
    """Beyond 32 workers, each renews its quotas less often."""
    slower = renewal_interval(_INTERVAL_S, _LEASE_S, workers) / _INTERVAL_S
    return replace(costs, presence_commands=costs.presence_commands / slower)


def steady(case: Case, gpus: int, per_worker: int, costs: Costs, outstanding: int = _MAX_OUTSTANDING) -> Outcome:
    """Of many GPUs, a part is simulated, with as large a part of the window, on a Redis and a caller that are slower
    in proportion: what each is busy with is the same."""
    workers = max(1, gpus // per_worker)
    part = math.ceil(gpus / MOST_GPUS)
    costs = with_presence(costs, workers)
    costs = replace(costs, **{name: getattr(costs, name) * part for name in _OF_ONE_PROCESS})
    cluster = Cluster(max(1, workers // part), min(per_worker, gpus), outstanding // part)
    found = Simulation(cluster, case.work, costs).steady(case.warm_up_s, case.seconds)
    return replace(found, agents_per_s=found.agents_per_s * workers / cluster.workers)


def limits(case: Case, costs: Costs) -> Iterator[tuple[str, Json]]:
    """By layout: the GPUs at which Redis or the caller is 95 % busy, by what they are with a few GPUs; the GPUs that
    the caller's window fills; and the CPU of a worker."""
    for per_worker in (1, case.gpus_per_worker):
        few = steady(case, case.gpus, per_worker, costs)
        found: Json = {
            "window": int(_MAX_OUTSTANDING / case.work.at_once),
            "caller": int(case.gpus * ENOUGH / few.caller),
            "Redis": int(case.gpus * ENOUGH / few.redis),
            "client": round(few.client, 3),
            "commands_per_agent": round(few.commands_per_agent, 1),
        }
        print(f"{per_worker} GPUs for each worker: {found}", flush=True)
        yield str(per_worker), found


def whole(case: Case, costs: Costs, gpus_each: int, per_worker: int) -> Json:
    """All GPUs as one run, and as many runs as are needed."""
    one = steady(case, GPUS, per_worker, costs)
    ideal = case.work.agents_per_gpu_s * GPUS
    runs = math.ceil(GPUS / gpus_each)
    split = steady(case, gpus_each, per_worker, costs).agents_per_s / gpus_each * GPUS
    held = _bytes_held() + case.tokens * BYTES_PER_TOKEN
    return {
        "gpus_alone_per_s": round(ideal),
        "one_run": {name: round(value, 3) for name, value in asdict(one).items()},
        "gpus_per_run": gpus_each,
        "runs": runs,
        "agents_per_s": round(split),
        "days": round(ROWS / split / 86_400, 2),
        "bytes_per_agent": held,
        "redis_tb": round(ROWS * held / 1e12, 1),
        "redis_servers": math.ceil(ROWS * held / REDIS_BYTES),
        "redis_gb_per_run": round(ROWS * held / runs / 1e9),
        "redis_mb_per_s_per_run": round(split / runs * held * 2 / 1e6, 1),
    }


def _bytes_held() -> int:
    return round(float(results("cluster")["parts"]["cost"]["medians"]["Redis, 4 workers"]["redis_bytes_per_agent"]))


def checks(costs: Costs) -> Iterator[Json]:
    """Real runs, and the simulation of each."""
    many = results("cluster_workers")["parts"]["many-workers"]
    timer = Work(1, many["at_once"], many["turn_s"], many["turn_s"], many["at_once"], spread=0.05)
    for workers in (1, 4, 16):
        real = many["medians"][f"busy x{workers}"]
        yield _check(f"a timer, {many['at_once']} agents each", workers, real, timer, costs, real["agents"])
    slow = results("cluster")["parts"]["scaling-latency"]
    agent_s = slow["medians"]["shards x1"]["wall_s"] / slow["agents"] * slow["at_once"]
    turn_s, tool_s = (agent_s - 0.05) / 2, 0.05
    work = Work(2, slow["at_once"], turn_s, turn_s, slow["at_once"], tool_s, has_claims=True, spread=0.5)
    for workers in (1, 2, 4):
        real = slow["medians"][f"ours x{workers}"]
        yield _check("a slow engine, 32 agents each", workers, real, work, costs, slow["agents"])
    quick = results("cluster_16")["parts"]["scaling-cpu"]
    first = quick["medians"]["ours, caller apart x1"]
    caller_s = first["caller_cpu_s"] / _agents(quick, 1)
    client_s = (first["cpu_us_per_agent"] * 1e-6 - caller_s) / 2
    redis_s = costs.command_s * first["commands_per_agent"] + costs.redis_agent_s
    speed = redis_s / (first["redis_cpu_us_per_agent"] * 1e-6)
    there = replace(costs, **_faster(costs, speed) | {"caller_s": caller_s, "client_s": client_s})
    work = Work(2, quick["at_once"], 0.001, 0.001, quick["at_once"])
    for workers in (1, 4):
        real = quick["medians"][f"ours, caller apart x{workers}"]
        yield _check("an instant engine, 64 agents each, 16 cores", workers, real, work, there, _agents(quick, workers))


def _agents(part: Json, workers: int) -> int:
    """Of all workers."""
    return int(part["agents"] if "agents" in part else part["agents_per_worker"] * workers)


def _check(name: str, workers: int, real: Json, work: Work, costs: Costs, agents: int) -> Json:
    found = Simulation(Cluster(workers), work, with_presence(costs, workers), agents=agents).run()
    row = {
        "case": name,
        "workers": workers,
        "agents_per_s": [real["agents_per_s"], round(found.agents_per_s, 2)],
        "commands_per_agent": [real["commands_per_agent"], round(found.commands_per_agent, 2)],
    }
    print(row, flush=True)
    return row


def _faster(costs: Costs, speed: float) -> dict[str, float]:
    return {name: getattr(costs, name) / speed for name in (*_OF_ONE_PROCESS, "client_s")}


def _answer(costs: Costs, case: Case) -> Json:
    layouts = dict(limits(case, costs))
    most = {layout: min(one[what] for what in ("window", "caller", "Redis")) for layout, one in layouts.items()}
    best = max(most, key=lambda layout: (most[layout], layouts[layout]["Redis"]))
    per_worker = int(best)
    return {
        "work": asdict(case.work),
        "limits": layouts,
        "whole": whole(case, costs, min(GPUS, most[best] // per_worker * per_worker), per_worker),
    }


def main() -> None:
    costs = measured_costs()
    print(costs, flush=True)
    found: Json = {"constants": asdict(costs), "checks": list(checks(costs)), "hosts": {}}
    with ProcessPoolExecutor(4) as processes:
        asked = {
            (host, name): processes.submit(_answer, replace(costs, **_faster(costs, speed)), case)
            for host, speed in HOSTS.items()
            for name, case in cases().items()
        }
        for (host, name), answer in asked.items():
            found["hosts"].setdefault(host, {})[name] = answer.result()
    print(report.write("capacity", found))


if __name__ == "__main__":
    main()
