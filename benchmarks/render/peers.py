"""Tables that compare BatchAgent with loops and other libraries."""

from collections.abc import Callable

from benchmarks.peers.participants import PEERS
from benchmarks.render.cells import Json, results, seconds, table, times

_OURS = "batch_agent"
_README = ("batch_agent", "expert", "gather", "langgraph", "pydantic_ai")
_WAITING = ("one_key_50", "one_key_200", "ten_keys_64", "ten_keys_256", "slow_tool")


def summary() -> str:
    one, two = _part("single_2000"), _part("ten_keys_64")
    rows = [
        [
            PEERS[peer].title,
            _cpu(one, peer),
            _cpu(two, peer),
            _cell(two, peer, lambda found: seconds(found["wall_s"])),
        ]
        for peer in sorted(one["medians"], key=lambda peer: float(one["medians"][peer]["cpu_s"]))
    ]
    wall = f"wall: {two['agents']:,} agents with a tool (ideal: {seconds(two['ideal_s'])})"
    return table(["", "CPU per agent, one turn", "two turns and a tool", wall], rows)


def readme_costs() -> str:
    one, two = _part("single_2000"), _part("ten_keys_64")
    rows = [
        [PEERS[peer].title, _cpu(one, peer), _cell(two, peer, lambda found: seconds(found["wall_s"]))]
        for peer in _README
    ]
    return table(["", "CPU per agent", f"wall: {two['agents']:,} agents with a tool"], rows)


def _cpu(part: Json, peer: str) -> str:
    """CPU time per agent."""
    return _cell(part, peer, lambda one: _micros(one["cpu_s"] / part["agents"] * 1e6))


def _micros(value: float) -> str:
    return f"{value:.0f} us" if value < 1000 else f"{value / 1000:.1f} ms"


def single() -> str:
    parts = [_part("single_2000"), _part("single_10000")]
    rows = [[PEERS[peer].title, *(cell for part in parts for cell in _single(part, peer))] for peer in _peers(*parts)]
    heads = ["CPU / BatchAgent", "CPU per agent", "wall", "peak memory"]
    return table(["", *(f"{part['agents']:,}: {head}" for part in parts for head in heads)], rows)


def _single(part: Json, peer: str) -> list[str]:
    one = part["medians"].get(peer)
    if one is None:
        return [""] * 4
    cpu = f"{one['cpu_s'] / part['agents'] * 1e6:,.0f} us"
    return [_against(part, peer, "cpu_s"), cpu, seconds(one["wall_s"]), f"{one['peak_mb']:.0f} MB"]


def agents() -> str:
    """Wall times against the ideal, and how often the tool ran."""
    parts = [_part(name) for name in _WAITING]
    ideal = ["ideal client (lower bound)", *(f"{seconds(part['ideal_s'])} ({part['keys']})" for part in parts)]
    rows = [[PEERS[peer].title, *(_agents(part, peer) for part in parts)] for peer in _peers(*parts)]
    return table(["wall / ideal (executions)", *map(_head, parts)], [ideal, *rows])


def cores() -> str:
    """The same on a machine where clients and servers have separate cores."""
    return _loops("16 cores", results("peers_16")["parts"])


def loops() -> str:
    """The loops alone, on two cores."""
    return _loops("2 cores", results("peers_loops")["parts"])


def _loops(where: str, parts: Json) -> str:
    peers = list(parts[_WAITING[0]]["medians"])
    rows = [[_head(part), *(_on_cores(part, peer) for peer in peers)] for part in parts.values()]
    titles = [PEERS[peer].title for peer in peers]
    return table([f"{where}: wall / ideal, CPU / hand-optimized", *titles], rows)


def _on_cores(part: Json, peer: str) -> str:
    if peer not in part["medians"]:
        return ""
    one, expert = part["medians"][peer], part["medians"]["expert"]
    wall = [times(one["wall_s"] / part["ideal_s"])] if part["ideal_s"] else []
    return ", ".join([*wall, times(one["cpu_s"] / expert["cpu_s"])])


def _head(part: Json) -> str:
    agents = f"{part['agents']:,} agents"
    if not part["keys"]:
        return f"{agents}, {part['inflight']:,} at once, {part['what']}"
    keys = "one key" if part["keys"] == 1 else f"{part['keys']} keys"
    return f"{agents}, {keys}, {part['inflight']} at once, {part['what'].rpartition(', ')[2]}"


def _agents(part: Json, peer: str) -> str:
    return _cell(part, peer, lambda one: f"{times(one['wall_s'] / part['ideal_s'])} ({one['executions']:.0f})")


def workloads() -> str:
    """What is left: agents with tools by CPU, streams, faults, checkpoints."""
    rows = [_workloads(peer) for peer in _peers(_part("ten_keys_64"), _part("streaming"), _part("faults"))]
    heads = ["two turns and a tool: CPU / BatchAgent", "streamed: CPU / BatchAgent", "... first token, p50"]
    return table(["", *heads, "faults: wall / ideal", "... agents failed", "checkpoint: CPU, on / off"], rows)


def _workloads(peer: str) -> list[str]:
    streams, faults = _part("streaming"), _part("faults")
    return [
        PEERS[peer].title,
        _against(_part("ten_keys_64"), peer, "cpu_s"),
        _against(streams, peer, "cpu_s"),
        _cell(streams, peer, lambda one: f"{one['ttft_p50_s'] * 1000:.0f} ms" if "ttft_p50_s" in one else ""),
        _cell(faults, peer, lambda one: times(one["wall_s"] / faults["ideal_s"])),
        _cell(faults, peer, lambda one: f"{one['failed'] + one['lost']:.0f}"),
        _cell(_part("checkpoint_on"), peer, lambda one: times(one["cpu_s"] / one["cpu_without_s"])),
    ]


def endpoints() -> str:
    part = _part("four_endpoints")
    rows = [
        [
            PEERS[peer].title,
            times(one["wall_s"] / part["ideal_s"]),
            seconds(one["wall_s"]),
            _against(part, peer, "cpu_s"),
            f"{one['requests']:,.0f}",
        ]
        for peer, one in part["medians"].items()
    ]
    return table(["", "wall / ideal", "wall", "CPU / BatchAgent", "requests"], rows)


def alone() -> str:
    both = (_OURS, "expert")
    lag, memory, start = _part("lag"), _part("memory"), _part("start")
    costs = _part("cost")["by_number_of_agents"]
    rows = [
        [
            f"longest event loop stall, {lag['agents']:,} agents",
            *(f"{max(lag['worst_lag_s'][peer].values()) * 1000:.0f} ms" for peer in both),
        ],
        [
            "memory per agent waiting for a tool, excluding its text",
            *(f"{memory['kb_per_agent'][peer]:.1f} kB" for peer in both),
        ],
        *(
            [
                f"CPU per agent, {int(size):,} agents",
                *(f"{costs[peer][size]['cpu_us_per_agent']:.0f} us" for peer in both),
            ]
            for size in costs[_OURS]
        ),
        ["`import batch_agent`", f"{start['import_s'] * 1000:.0f} ms", ""],
        ["`from batch_agent import BatchAgent`", f"{start['names_s'] * 1000:.0f} ms", ""],
        ["... and the first answer", f"{start['first_s'] * 1000:.0f} ms", ""],
    ]
    return table(["", "BatchAgent", PEERS["expert"].title], rows)


def targets() -> list[Json]:
    found: list[Json] = results("peers")["targets"]
    return found


def _part(name: str) -> Json:
    part: Json = results("peers")["parts"][name]
    return part


def _peers(*parts: Json) -> list[str]:
    """Those that are in any of them."""
    return [peer for peer in PEERS if any(peer in part["medians"] for part in parts)]


def _against(part: Json, peer: str, name: str) -> str:
    return _cell(part, peer, lambda one: times(one[name] / part["medians"][_OURS][name]))


def _cell(part: Json, peer: str, show: Callable[[Json], str]) -> str:
    """Empty for a peer that was not in it."""
    one = part["medians"].get(peer)
    return "" if one is None else show(one)
