"""The tables of the simulation of 1,000 GPUs and a billion rows."""

from collections.abc import Callable

from benchmarks.render.cells import Json, results, share, table

_HOSTS = {"measured": "as measured", "twice as fast": "CPUs twice as fast"}
_WORK = {"rows": "rows: one turn, 64 tokens", "agents": "agents: four turns, 8,000 tokens, tools"}


def checks() -> str:
    heads = ["run", "workers", "agents/s: real", "simulated", "commands per agent: real", "simulated"]
    rows = [
        [
            one["case"],
            str(one["workers"]),
            *(f"{speed:,.1f}" for speed in one["agents_per_s"]),
            *(f"{commands:.1f}" for commands in one["commands_per_agent"]),
        ]
        for one in results("capacity")["checks"]
    ]
    return table(heads, rows)


def limits() -> str:
    heads = ["work", "CPUs", "GPUs per worker", "caller", "Redis", "window", "CPU of a worker", "commands per agent"]
    rows = []
    for host, works in results("capacity")["hosts"].items():
        for name, found in works.items():
            for layout, one in found["limits"].items():
                counts = [_gpus(one[what]) for what in ("caller", "Redis", "window")]
                rows.append(
                    [
                        _WORK[name],
                        _HOSTS[host],
                        layout,
                        *counts,
                        share(one["client"]),
                        f"{one['commands_per_agent']:.0f}",
                    ]
                )
    return table(heads, rows)


def whole() -> str:
    heads = ["", *(f"{name}, {_HOSTS[host]}" for host, name, _ in _each())]
    shown: dict[str, Callable[[Json], str]] = {
        "what 1,000 GPUs could do": lambda one: f"{one['gpus_alone_per_s']:,}/s",
        "as one run": lambda one: f"{one['one_run']['agents_per_s']:,.0f}/s",
        "... Redis busy": lambda one: share(one["one_run"]["redis"]),
        "... caller busy": lambda one: share(one["one_run"]["caller"]),
        "split: GPUs per run": lambda one: f"{one['gpus_per_run']:,}",
        "... runs, each with its own Redis and caller": lambda one: f"{one['runs']:,}",
        "... together": lambda one: f"{one['agents_per_s']:,}/s",
        "... a billion rows in": lambda one: _time(one["days"]),
        "... in the memory of all Redis servers": lambda one: f"{one['redis_tb']:,} TB",
        "... which is that of servers with 512 GB": lambda one: f"{one['redis_servers']:,}",
        "... network of each": lambda one: f"{one['redis_mb_per_s_per_run']:,} MB/s",
    }
    return table(heads, [[what, *(show(found) for _, _, found in _each())] for what, show in shown.items()])


def _each() -> list[tuple[str, str, Json]]:
    return [
        (host, name, found["whole"])
        for host, works in results("capacity")["hosts"].items()
        for name, found in works.items()
    ]


def _gpus(number: int) -> str:
    return f"{number:,}"


def _time(days: float) -> str:
    return f"{days:,.1f} days" if days >= 1 else f"{days * 24:,.1f} hours"
