"""The tables of runs that several processes share."""

from collections.abc import Iterator

from benchmarks.render.cells import RESULTS, Json, results, seconds, table, times

_SCALING = {
    "scaling-latency": "a slow engine, 32 concurrent agents per process",
    "scaling-cpu": "instant engines: the clients are the bottleneck",
}
_FAULTS = {
    "none": "none",
    "worker killed": "a worker is killed at 30 %",
    "worker cut off": "a worker loses Redis for 2.5 leases and reconnects",
    "Redis restarted": "Redis is killed and restarted after a second",
    "shards": "gather loops: none",
    "shards, one killed": "gather loops: one is killed at 30 %",
}
_SETUPS = {
    "hub in the process": "in-process coordinator",
    "Redis, own calls": "Redis, distinct calls",
    "Redis, own calls, 4 workers": "Redis, distinct calls, 4 workers",
}
_RAY = {"none": "Ray, four nodes: none", "node killed": "Ray, four nodes: one is killed at 50 %"}


def parts(found: Json) -> Json:
    """Those of another benchmark's results are not such."""
    listed: Json = found["parts"] if found["benchmark"] == "cluster" else {}
    return listed


def targets() -> list[Json]:
    return [one for found in _machines() for part in parts(found).values() for one in part["targets"]]


def scaling() -> str:
    """Of every machine that there are results of."""
    heads = ["", "workers", "speed-up: BatchAgent", "... gather loops", "BatchAgent / loops", "BatchAgent", "loops"]
    return table(heads, _scaling_rows())


def _scaling_rows() -> Iterator[list[str]]:
    for found in _machines():
        for key, name in _SCALING.items():
            part = found["parts"].get(key)
            if part is None:
                continue
            cores = part.get("from", found)["machine"]["cores"]
            for count, ratio in part["ours_to_shards"].items():
                speeds = [part["medians"][f"{way} x{count}"]["agents_per_s"] for way in ("ours", "shards")]
                gains = [times(part["ratios"][way][count]) for way in ("ours", "shards")]
                shown = [f"{speed:,.0f}/s" for speed in speeds]
                yield [f"{name}; {cores} cores", count, *gains, times(ratio), *shown]


def cost() -> str:
    part = _part("cost")
    heads = ["", "CPU, ratio", "CPU per agent", "agents/s", "Redis CPU", "commands", "bytes in Redis"]
    rows = [
        [
            _SETUPS.get(name, name),
            times(part["against_no_store"][name]["cpu_us_per_agent"]),
            f"{one['cpu_us_per_agent']:,.0f} us",
            f"{one['agents_per_s']:,.0f}",
            *_of_redis(one),
        ]
        for name, one in part["medians"].items()
    ]
    return table(heads, rows)


def _of_redis(one: Json) -> list[str]:
    if "commands_per_agent" not in one:
        return ["", "", ""]
    held = f"{one['redis_bytes_per_agent']:,.0f}"
    return [f"{one['redis_cpu_us_per_agent']:.0f} us", f"{one['commands_per_agent']:.1f}", held]


def tools() -> str:
    part = _part("tools")
    rows = []
    for case, calls in part["calls"].items():
        ours, loops = (part["medians"][f"{case}: {way}"] for way in ("ours", "shards"))
        executed = [f"{one['executed']:,.0f}" for one in (loops, ours)]
        walls = [seconds(one["wall_s"]) for one in (loops, ours)]
        rows.append([f"{case}, {part['workers']} workers", f"{calls:,}", " to ".join(executed), " to ".join(walls)])
    return table(["gather loops to BatchAgent", "calls", "executions", "wall"], rows)


def faults() -> str:
    part = _part("faults")
    rows = [
        _fault(name, part["against_none"][key], part["medians"][key])
        for key, name in _FAULTS.items()
        if key in part["medians"]
    ]
    ray = results("cluster")["parts"].get("ray")
    if ray is not None:
        rows += [
            _fault(name, 1.0 if key == "none" else ray["against_none"], ray["medians"][key])
            for key, name in _RAY.items()
        ]
    heads = ["fault", "wall, ratio", "wall", "agents lost", "duplicates", "duplicate writes", "turns repeated"]
    return table(heads, rows)


def _fault(name: str, ratio: float, one: Json) -> list[str]:
    doubled = one.get("doubled", one.get("twice"))
    counts = ["" if each is None else f"{each:.0f}" for each in (one["lost"], doubled, one["writes_twice"])]
    return [name, times(ratio), seconds(one["wall_s"]), *counts, _asked_again(one)]


def _asked_again(one: Json) -> str:
    if "asked_again_at_most" in one:
        return f"at most {one['asked_again_at_most']:.0f}"
    return f"{one['asked_again']:.0f}" if "asked_again" in one else ""


def _machines() -> list[Json]:
    """The results of each."""
    return [results(path.stem) for path in sorted(RESULTS.glob("cluster*.json"))]


def _part(name: str) -> Json:
    part: Json = results("cluster")["parts"][name]
    return part
