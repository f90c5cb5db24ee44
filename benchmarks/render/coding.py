"""The tables of coding agents over one server."""

from benchmarks.render.cells import results, seconds, share, table

_WAYS = {"gateway": "through the gateway", "direct": "directly to the server"}
_MODES = {"serve": "one `opencode serve`", "process": "one process per agent"}


def prefix() -> str:
    found = results("coding_prefix")
    rows = [
        [
            name,
            share(one["found_in_cache"]),
            f"{one['prompt_tokens']:,.0f}",
            seconds(one["wall_s"]),
            f"{one['agents_ok']:.0f} of {found['agents']}",
        ]
        for way, name in _WAYS.items()
        for one in [found["medians"][way]]
    ]
    return table(["requests go", "prefix cache hits", "prompt tokens", "wall", "agents that succeeded"], rows)


def cost() -> str:
    medians = results("coding_cost")["medians"]
    rows = []
    for way, one in medians.items():
        mode, _, agents = way.partition("_")
        rows.append(
            [
                _MODES[mode],
                agents,
                seconds(one["cpu_s_per_agent"]),
                f"{one['peak_mb'] / int(agents):,.0f} MB",
                seconds(one["wall_s"]),
                f"{one['agents_ok']:.0f} of {agents}",
            ]
        )
    head = ["OpenCode runs as", "concurrent agents", "CPU per agent", "memory per agent", "wall", "succeeded"]
    return table(head, rows)
