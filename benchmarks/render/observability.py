"""Tables of what observing a run costs."""

from benchmarks.render.cells import Json, results, seconds, span, table, times

_WAYS = {
    "none": "nothing",
    "board": "the numbers of the dashboard, without a terminal",
    "state": "the numbers of the dashboard, without a terminal",
    "dashboard": "the dashboard, in a terminal",
    "log": "the log, with a report at its end",
    "metrics": "`Metrics`",
    "traces_api_only": "`Traces`, no SDK",
    "traces_sdk": "`Traces`, SDK with a batch processor and an exporter to memory",
    "traces_content": "`Traces(content=True)`, the same",
    "metrics_and_traces_sdk": "`Metrics`, and `Traces` with the SDK",
    "checkpoint": "a checkpoint: the log, and all facts",
}
_REAL = {
    "nobody": "nothing",
    "log": "a checkpoint with its log and report",
    "log_and_dashboard": "... and the dashboard",
}


def watching() -> str:
    found = results("watching")
    base = found["ways"]["none"]
    rows = [[name, *_costs(found["ways"][way], base)] for way, name in _WAYS.items() if way in found["ways"]]
    return table(["enabled", "CPU, ratio", "wall, ratio", "CPU per agent", "overhead"], rows)


def _costs(one: Json, base: Json) -> list[str]:
    cpu = one["cpu_us_per_agent"]
    more = cpu - base["cpu_us_per_agent"]
    ratios = [times(one[name] / base[name]) for name in ("cpu_s", "wall_s")]
    return [*ratios, f"{cpu:,.0f} us", f"{more:.0f} us" if more else ""]


def real_watching() -> str:
    parts = results("gpu_watching")["parts"]["watching"]
    rows = []
    for way, name in _REAL.items():
        rounds = list(parts[way].values())
        rows.append([name, *(span([one[number] for one in rounds], seconds) for number in ("wall_s", "client_cpu_s"))])
    return table(["enabled", "wall", "client CPU"], rows)


def dashboard() -> str:
    found = results("dashboard")
    rows = [
        ["an event", f"{found['us_per_event']:.1f} us"],
        *(
            [f"a frame of {size}", f"{sum(cost.values()):.1f} ms"]
            for size, cost in found["ms_per_frame"].items()
        ),
    ]  # fmt: skip
    return table(["the dashboard of 10,000 agents", "CPU"], rows)
