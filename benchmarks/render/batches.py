"""Tables about flows, pools, tools and checkpoints."""

from collections.abc import Sequence
from statistics import median

from benchmarks.render.cells import Json, results, seconds, span, table, times

_POOLS = ("lists", "alone", "raw_lists", "aurora_lists", "aurora_alone")


def flows() -> str:
    names = {
        "deep": "deep: 64 items in five stages",
        "searching": "wide with slow tools (1 to 8 s): 400 items, answered and judged",
        "narrow": "narrow: 16 items, answered and judged",
        "wide": "wide: 400 items, half of them with a tool of up to 2 s",
        "crowded": "crowded: 256 items, the engine runs 64 concurrently",
        "tree": "tree: 200 results in a window of 4,096 tokens",
        "even": "even: answers of equal length, no tools, saturated engine",
    }
    found = results("flows")["medians"]
    rows = [
        _flow(f"{name}; simulated", [found[key]["stages"]], [found[key]["flow"]], has_first=key != "tree")
        for key, name in names.items()
    ]
    for key, case in results("gpu_prompts")["parts"]["flows"].items():
        if isinstance(case, dict):
            rows.append(_flow(f"{key}, H200", list(case["stages"].values()), list(case["flow"].values())))
    return table(["", "stages / flow", "stages", "flow", "first item done: stages; flow"], rows)


def _flow(what: str, stages: Sequence[Json], flow: Sequence[Json], *, has_first: bool = True) -> list[str]:
    walls = [[one["wall_s"] for one in way] for way in (stages, flow)]
    firsts = [span([one["first_s"] for one in way]) for way in (stages, flow)]
    ratio = times(median(walls[0]) / median(walls[1]))
    return [what, ratio, span(walls[0]), span(walls[1]), f"{firsts[0]}; {firsts[1]}" if has_first else ""]


def pools() -> str:
    names = {
        "equal x1": "equal, 1 endpoint",
        "equal x2": "equal, 2",
        "equal x4": "equal, 4",
        "varied x4": "varied, 4",
        "many x4": "many, 4",
        "equal slow": "equal, 3 and one that is 4 times slower",
        "varied slow": "varied, 3 and one that is 4 times slower",
        "poisoned": "varied, 4, one prompt that is refused",
        "killed": "varied, 4, one endpoint dies",
    }
    found = results("pools")["simulated"]["medians"]
    rows = []
    for key, name in names.items():
        case = found[key]
        peer = case["aurora_lists"]["wall_s"] / case["lists"]["wall_s"]
        rows.append([name, times(peer), *(_pool(case.get(way)) for way in _POOLS)])
    heads = ["lists", "one by one", "raw lists", "Aurora's lists", "Aurora's one by one"]
    return table(["", "Aurora's lists / BatchAgent's", *heads], rows)


def _pool(one: Json | None) -> str:
    if one is None:
        return ""
    failed = f", **{one['failed']} failed**" if one["failed"] else ""
    return f"{seconds(one['wall_s'])} ({one['requests']:.0f}){failed}"


def real_pools() -> str:
    ways = {"lists": "lists", "alone": "one by one", "loop": "gather loop"}
    parts = results("gpu_pools")["parts"]["pools"]
    base = median(one["wall_s"] for one in parts["loop"].values())
    rows = [
        [
            f"H200, 2,000 short prompts: {name}",
            times(median(one["wall_s"] for one in parts[key].values()) / base),
            span([one["wall_s"] for one in parts[key].values()]),
            span([one["first_s"] for one in parts[key].values()]),
        ]
        for key, name in ways.items()
    ]
    cpu = results("pools")["vllm"]["medians"]["vllm"]
    named = {
        "lists": "lists",
        "alone": "one by one",
        "raw_lists": "raw lists",
        "aurora_lists": "Aurora's lists",
        "aurora_alone": "Aurora's one by one",
    }
    for key, name in named.items():
        wall = cpu[key]["wall_s"]
        ratio = times(wall / cpu["aurora_alone"]["wall_s"])
        rows.append([f"CPU, 64 prompts: {name}", ratio, seconds(wall), seconds(cpu[key]["first_s"])])
    return table(["vLLM", "wall, ratio", "wall", "first answer"], rows)


def tools() -> str:
    found = results("tools")
    rows = []
    for key, name in (
        ("documents_100_agents_x_10", "100 agents read 10 documents each"),
        ("slow_tool_1000_agents_10_keys_200ms", "1,000 agents, 10 keys, a tool of 200 ms"),
    ):
        shared, alone = found[key]["shared"], found[key]["alone"]
        rows.append(
            [
                name,
                f"{alone['executed']:,} to {shared['executed']}",
                f"{alone['tool_seconds']:.1f} to {shared['tool_seconds']:.1f} s",
                f"{seconds(alone['wall_s'])} to {seconds(shared['wall_s'])}",
            ]
        )
    return table(["effect `write` to `read`", "executions", "seconds in tools", "wall"], rows)


def checkpoint() -> str:
    found = results("checkpoint")
    rows = []
    for key, name in (("no_latency", "a server without latency"), ("quick_model", "a fast model")):
        medians = found[key]["medians"]
        for way in ("on", "on, with writes", "resume"):
            against, wall = found[key]["against_off"][way], medians[way]["wall_s"]
            off = medians.get("off, with writes" if "writes" in way else "off", medians["off"])["wall_s"]
            ratios = [times(against["wall_s"]), times(against["cpu_us_per_agent"])]
            rows.append([f"{name}: {way}", *ratios, seconds(off), seconds(wall)])
    return table(["", "wall, ratio", "CPU, ratio", "without", "with"], rows)
