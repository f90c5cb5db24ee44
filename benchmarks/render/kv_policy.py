"""Table about eviction policies of a host KV tier."""

from benchmarks.render.cells import results, table

COLUMNS = ("LRU", "ARC", "ours, none", "ours, unknown", "ours, rough", "ours, p75", "ours, exact")


def kv_policy() -> str:
    rows = [
        [
            name,
            f"{case['device_tokens']:,} / {case['host_tokens']:,}",
            *(f"{case['policies'][policy]['of_optimum']:.2f}" for policy in COLUMNS),
            f"{case['policies']['LRU']['served']:.2f}, {case['policies']['ours, p75']['served']:.2f}",
        ]
        for name, case in results("kv_policy")["cases"].items()
    ]
    return table(["case", "tokens on device / host", *COLUMNS, "prompts served: LRU, ours (p75)"], rows)
