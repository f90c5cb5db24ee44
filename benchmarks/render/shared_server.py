"""Tables about agents that share a server."""

from collections.abc import Callable
from statistics import median

from benchmarks.render.cells import Json, results, seconds, share, span, table, times


def resident() -> str:
    found = _resident()
    setup = found["setup"]
    fit = f"{_agents_that_fit(setup)} of {setup['sizes']['agents']} agents"
    rows = [
        _compare(f"**wall**: {len(found['ours'])} rounds, the cache holds {fit}", found, lambda one: one["wall_s"]),
        _compare("... first result", found, lambda one: one["first_result_s"]),
        _compare("... tool done to first token, p50", found, lambda one: one["tool_done_to_first_token_s"]["p50"]),
        _compare("... prefix cache hits, later turns", found, lambda one: one["cached_share_later_turns"], share),
    ]
    return table(["", "BatchAgent / all at once", "all at once", "BatchAgent"], rows)


def readme_gains() -> str:
    found = _resident()
    rows = [
        _compare("wall time", found, lambda one: one["wall_s"]),
        _compare("first result", found, lambda one: one["first_result_s"]),
        _compare("prefix cache hits, later turns", found, lambda one: one["cached_share_later_turns"], share),
    ]
    return table(
        [f"{len(found['ours'])} rounds", "gather loop", "BatchAgent"], [[what, *ways] for what, _, *ways in rows]
    )


def _resident() -> Json:
    """The agents on a server without a host tier."""
    found: Json = results("gpu_kv_exclusive")["parts"]["kv_none"]
    return found


def _agents_that_fit(setup: Json) -> int:
    sizes = setup["sizes"]
    grown = sizes["own"] + (sizes["turns"] - 1) * (sizes["output"] + sizes["result"]) + sizes["output"]
    return int((setup["kv_tokens"] - sizes["shared"]) // grown)


def _compare(what: str, found: Json, of: Callable[[Json], float], show: Callable[[float], str] = seconds) -> list[str]:
    ours, peer = [of(one) for one in found["ours"]], [of(one) for one in found["loop"]]
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
    return table(["32B shape, 2 turns: wall", "BatchAgent / loop", "loop, concurrency set by hand", "BatchAgent"], rows)


def prefix() -> str:
    found = results("gpu_prompts")["parts"]["prefix"]
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
    return table(["agents", "shared / not shared", "no shared prefix: wall (first token, p50)", "shared prefix"], rows)


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
            ["... after its first turn", *against("longest_later_wait_p95_s")],
            ["prefix cache hits, later turns: all at once", *shares("dispatch_all")],
            ["... BatchAgent", *shares("ours")],
        ],
    )


def keep_warm() -> str:
    simulated, real = results("keep_warm")["medians"], results("keep_warm_vllm")
    rows = []
    for name, what in (
        ("idle", "simulated, other clients send 5 requests/s"),
        ("busy", "simulated, other clients saturate the server"),
    ):
        off, on = simulated[name]["off"], simulated[name]["on"]
        rows.append(
            [
                what,
                times(on["resumed_p50_s"] / off["resumed_p50_s"]),
                times(on["wall_s"] / off["wall_s"]),
                f"{off['computed_tokens']:,.0f} to {on['computed_tokens']:,.0f}",
                f"{on['touches']:.0f} keep-warm requests, {on['touch_tokens']:,.0f} tokens",
            ]
        )
    off, on = real["off"], real["on"]
    rows.append(
        [
            "vLLM 0.32 on two CPU cores, another client churns the cache",
            times(median(on["resumed_ttft_s"]) / median(off["resumed_ttft_s"])),
            times(on["wall_s"] / off["wall_s"]),
            "",
            f"{on['touches']} keep-warm requests, {on['touch_tokens']:,} tokens; requests of the other client "
            f"{seconds(off['others_mean_s'])} to {seconds(on['others_mean_s'])}",
        ]
    )
    return table(["", "resumed turn, on / off", "wall, on / off", "computed tokens", "cost"], rows)


def kv_hints() -> str:
    """Cached tokens of the turns after the tool call; for Dynamo the three runs of each way."""
    found = results("kv_hints")["cases"]
    rows = []
    for case, way, what in (
        ("sglang_sessions", "with", "SGLang, sessions"),
        (
            "sglang_priorities",
            "rising",
            "SGLang, eviction by priority, higher in each turn, after other agents have ended",
        ),
        (
            "sglang_priorities",
            "with",
            "SGLang, eviction by priority, the same in all turns, after other agents have ended",
        ),
        ("lmcache", "with", "vLLM, LMCache beside it"),
    ):
        without, hinted = found[case]["without"], found[case][way]
        rows.append([what, *(f"{it['cached']:,}" for it in (without, hinted)), f"{hinted['prompt']:,}"])
    for router, ways in found["dynamo"].items():
        counts = [", ".join(f"{it['cached']:,}" for it in ways[way]) for way in ("without", "with")]
        rows.append([f"Dynamo, {router}: session header", *counts, f"{ways['with'][0]['prompt']:,}"])
    sessions = found["sglang_sessions"]
    later = [f"{sessions[way]['others_cached_later']:,}" for way in ("without_ends", "with")]
    rows.append(["SGLang, sessions closed: what the other client finds after the run", *later, ""])
    return table(["cached tokens of returning agents", "without", "with", "of"], rows)
