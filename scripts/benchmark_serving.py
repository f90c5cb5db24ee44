"""Tables about agents that share a server."""

from collections.abc import Callable, Sequence
from statistics import median

from scripts.benchmark_cells import Json, results, seconds, share, span, table, times


def resident() -> str:
    parts = results("gpu")["parts"]
    rounds, offload = [parts["resident"], *parts["resident_earlier"]], [parts["offload"]]
    longer = [parts["resident_longer"]]
    rows = []
    for what, measured in (
        (f"{len(rounds)} rounds, the cache holds {_fit(rounds)}", rounds),
        (f"1,100 tokens more each, the cache holds {_fit(longer)}; one round of a draft", longer),
        ("64 GB of CPU offload; one round", offload),
    ):
        rows += [
            _beside(f"**wall**: {what}", measured, lambda one: one["wall_s"]),
            _beside("... first result", measured, lambda one: one["first_result_s"]),
            _beside(
                "... tool done to first token, p50", measured, lambda one: one["tool_done_to_first_token_s"]["p50"]
            ),
            _beside("... later turns found in the cache", measured, lambda one: one["cached_share_later_turns"], share),
        ]
    return table(["", "ours / all at once", "all at once", "ours"], rows)


def _fit(parts: Sequence[Json]) -> str:
    setup = parts[0]["setup"]
    return f"{setup['agents_that_fit']} of {setup['sizes']['agents']} agents"


def _beside(
    what: str, parts: Sequence[Json], of: Callable[[Json], float], show: Callable[[float], str] = seconds
) -> list[str]:
    ours, peer = [of(part["batch_agent"]) for part in parts], [of(part["dispatch_all"]) for part in parts]
    ratio = "" if show is share else times(median(ours) / median(peer))
    return [what, ratio, span(peer, show), span(ours, show)]


def inflight() -> str:
    found = results("gpu")["parts"]["inflight"]
    rows = []
    for name in ("research_summary", "slow_tool"):
        sizes, ours = found[name]["sizes"], found[name]["batch_agent"]["wall_s"]
        peer = found[name][f"plain_{sizes['plain_at_once']}"]["wall_s"]
        what = f"{sizes['agents']} agents, a tool of {sizes['tool_seconds']} s with {sizes['keys']} keys"
        rows.append([what, times(ours / peer), f"{seconds(peer)} ({sizes['plain_at_once']} at once)", seconds(ours)])
    return table(["32B shape, 2 turns: wall", "ours / loop", "loop with a hand-set number", "ours"], rows)


def prefix() -> str:
    found = results("gpu")["parts"]["prefix"]
    rows = []
    for agents in (5, 10, 20, 50, 100):
        one = found[f"agents_{agents}"]
        shared, alone = one["shared"], one["not_shared"]
        rows.append(
            [
                str(agents),
                times(shared["wall_s"] / alone["wall_s"]),
                *(f"{seconds(it['wall_s'])} ({it['ttft_first_turn_s']['p50']:.2f})" for it in (alone, shared)),
            ]
        )
    return table(["agents", "shared / not", "each its own beginning: wall (first token, p50)", "shared"], rows)


def scheduling() -> str:
    cases = {name: case for name, case in results("scheduling")["medians"].items() if name.startswith("crowd")}

    def against(field: str) -> list[str]:
        return [times(case["ours"][field] / case["dispatch_all"][field]) for case in cases.values()]

    def shares(way: str) -> list[str]:
        return [share(case[way]["later_turns_cached"]) for case in cases.values()]

    return table(
        ["working set / KV capacity", *(name.removeprefix("crowd ") for name in cases)],
        [
            ["wall", *against("wall_s")],
            ["an agent's longest wait for an answer, p95", *against("longest_wait_p95_s")],
            ["... once it has begun", *against("longest_later_wait_p95_s")],
            ["later turns found in the cache: all at once", *shares("dispatch_all")],
            ["... ours", *shares("ours")],
        ],
    )


def keep_warm() -> str:
    simulated, real = results("keep_warm")["medians"], results("keep_warm_vllm")
    rows = []
    for name, what in (("idle", "simulated, others ask 5/s"), ("busy", "simulated, others saturate it")):
        off, on = simulated[name]["off"], simulated[name]["on"]
        rows.append(
            [
                what,
                times(on["resumed_p50_s"] / off["resumed_p50_s"]),
                times(on["wall_s"] / off["wall_s"]),
                f"{off['computed_tokens']:,.0f} to {on['computed_tokens']:,.0f}",
                f"{on['touches']:.0f} touches, {on['touch_tokens']:,.0f} tokens",
            ]
        )
    off, on = real["off"], real["on"]
    rows.append(
        [
            "vLLM 0.32 on two CPU cores, another client churns the cache",
            times(median(on["resumed_ttft_s"]) / median(off["resumed_ttft_s"])),
            times(on["wall_s"] / off["wall_s"]),
            "",
            f"{on['touches']} touches, {on['touch_tokens']:,} tokens; others' requests "
            f"{seconds(off['others_mean_s'])} to {seconds(on['others_mean_s'])}",
        ]
    )
    return table(["", "resumed turn, on / off", "wall, on / off", "computed tokens", "cost"], rows)
