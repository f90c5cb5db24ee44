"""Tables about prompts."""

from benchmarks.render.cells import RESULTS, Json, results, seconds, share, span, table, times

_WAYS = ("as_written", "as_written_laid_out", "well_written", "well_written_laid_out", "fields")
_FORECAST = ("seconds", "prompt tokens", "computed", "output tokens")


def layout() -> str:
    simulated, real = results("layout"), results("gpu_prompts")["parts"]["layout"]
    rows = []
    for what, case in (
        ("reviews joined with products, simulated", simulated["reviews"]),
        ("code review, simulated, cache holds a twentieth", simulated["code_review"]),
        ("reviews, vLLM on an H200", real["reviews"]),
        ("code review, vLLM on an H200", real["code_review"]),
    ):
        ratio = times(case["fields"]["wall_s"] / case["as_written"]["wall_s"])
        ways = [f"{seconds(case[way]['wall_s'])}, {share(case[way]['cached_share'])}" for way in _WAYS]
        rows.append([what, ratio, *ways])
    heads = ["as written", "as written, laid out", "well written", "well written, laid out", "`Fields`"]
    return table(["400 prompts", "`Fields` / as written", *heads], rows)


def shared_results() -> str:
    """On the GPU where it was measured there, and simulated."""
    heads = {
        "gather_inline": "loop, behind the call",
        "gather_first": "loop, placed by hand",
        "inline": "`inline`",
        "first": "`first`",
        "auto": "`auto`",
        "first_in_call_order": "`first`, in call order",
    }
    rows = []
    for engine, found in _shared_results_by_engine():
        for case, ways in found.items():
            cells = [_computed(ways.get(way)) for way in heads]
            first, loop = ways.get("first"), ways.get("gather_inline")
            is_measured = isinstance(first, dict) and isinstance(loop, dict)
            ratio = times(first["wall_s"] / loop["wall_s"]) if is_measured else ""
            rows.append([f"{engine}: {case}", ratio, *cells])
    return table(["KV cache, who reads what", "`first` / loop", *heads.values()], rows)


def placement() -> str:
    found = results("shared_results")
    rows = []
    for case, ways in (found["nothing_shared"] | found["partly_shared"]).items():
        ratio = times(ways["auto"]["wall_s"] / ways["inline"]["wall_s"])
        rows.append([case, ratio, *(_computed(ways.get(way)) for way in ("inline", "first", "auto"))])
    return table(["simulated", "`auto` / `inline`", "`inline`", "`first`", "`auto`"], rows)


def _shared_results_by_engine() -> list[tuple[str, Json]]:
    simulated = {case: ways for case, ways in results("shared_results")["shared"].items() if "each" not in case}
    if not (RESULTS / "gpu_shared_results.json").exists():
        return [("simulated", simulated)]
    parts = results("gpu_shared_results")["parts"]
    memory = {"262k": ("shared_results", "shared_results_more"), "everything fits": ("shared_results_roomy",)}
    real = {
        f"{size} {who}": {way: run for name in names if name in parts for way, run in parts[name][who].items()}
        for size, names in memory.items()
        for who in ("topics", "zipf")
    }
    return [("H200", real), ("simulated", simulated)]


def _computed(way: Json | str | None) -> str:
    """Empty for a run for which no time was left. Tokens of a real server are those that its replies report: where
    memory is short, its counters of cache queries exceed all prompts together."""
    if not isinstance(way, dict):
        return ""
    is_reported = "cached_share" in way and "prompt_tokens" in way
    computed = way["prompt_tokens"] * (1 - way["cached_share"]) if is_reported else way["computed_tokens"]
    return f"{seconds(way['wall_s'])}, {computed / 1e6:.2f} M"


def forecast() -> str:
    rows = []
    for name, found in results("forecast")["ratios"].items():
        rows.append([f"{name}, simulated", *(span(found[what], times) for what in _FORECAST)])
    for name in ("reviews", "code_review"):
        found = results("gpu_prompts")["parts"]["layout"][name]["forecast"]
        rows.append([f"{name}, H200", *(times(found[what][2]) for what in _FORECAST)])
    return table(["forecast / actual", *_FORECAST], rows)


def compaction() -> str:
    names = {
        "none": "none",
        "elide": "`elide`",
        "summarize": "`summarize`",
        "wide": "none, a window of 64k and the same KV cache",
    }
    found = results("compaction")["medians"]
    return table(
        ["", "finished", "tokens in", "of which computed", "for summaries", "wall"],
        [
            [
                name,
                f"{found[key]['finished']} of {found[key]['agents']}",
                f"{found[key]['input_tokens'] / 1e6:.1f} M",
                f"{found[key]['computed_tokens'] / 1e6:.2f} M",
                f"{found[key]['summary_tokens'] / 1e6:.2f} M",
                seconds(found[key]["wall_s"]),
            ]
            for key, name in names.items()
        ],
    )


def quality() -> str:
    names = {"embedded": "embedded model (llama.cpp, 4 bits)", "vllm": "vLLM on CPU (32 bits)"}
    found = results("quality")
    rows = []
    for engine, name in names.items():
        if (case := found.get(engine)) is None:
            continue
        for way in ("inline", "first"):
            one = case[way]
            rows.append(
                [
                    f"{name}, `{way}`",
                    f"{one['read_the_document']} of {one['questions']}",
                    f"**{one['right']}** ({share(one['accuracy'])} ± {100 * one['margin']:.0f})",
                    f"{one['made_up']}",
                    f"{one['invalid']}",
                    f"{case[f'right_only_{way}']}",
                    f"{one['prompt_tokens']:,}",
                ]
            )
    heads = ["read the document", "right", "made up a number", "no answer", "right only so", "prompt tokens"]
    return table(["SmolLM2-135M", *heads], rows)
