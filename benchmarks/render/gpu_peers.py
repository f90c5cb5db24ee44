"""Table that compares BatchAgent with loops on a GPU server."""

from benchmarks.peers.participants import PEERS
from benchmarks.render.cells import Json, results, span, table, times

_WAYS = {"whole": "not streamed", "streamed": "streamed"}
_HEADS = (
    "CPU / hand-optimized",
    "CPU per agent",
    "wall / hand-optimized",
    "wall",
    "first token, p50",
    "peak memory",
    "failed, lost",
)


def real_peers() -> str:
    """Medians, but for walls, which are of all rounds."""
    part = results("gpu_peers")["parts"]["peers"]
    rows = [
        [f"{name}: {PEERS[client].title}", *_cells(one, _rounds(part[way][client]))]
        for way, name in _WAYS.items()
        for client, one in part[way]["medians"].items()
    ]
    return table([_head(part["setup"]), *_HEADS], rows)


def _head(setup: Json) -> str:
    sizes = f"{setup['agents']:,} agents of one turn, {setup['inflight']} in flight, {setup['output']} tokens"
    return f"H200, vLLM {setup['version']}: {sizes}"


def _rounds(by_name: Json) -> list[Json]:
    return [one for name, one in by_name.items() if name.startswith("round_")]


def _cells(one: Json, rounds: list[Json]) -> list[str]:
    return [
        times(one["cpu_times_expert"]),
        f"{one['cpu_us_per_agent']:,.0f} us",
        times(one["wall_times_expert"]),
        span([each["wall_s"] for each in rounds]),
        f"{one['ttft_p50_s'] * 1000:.0f} ms" if "ttft_p50_s" in one else "",
        f"{one['peak_mb']:.0f} MB",
        f"{sum(each['failed'] + each['lost'] for each in rounds):.0f}",
    ]
