"""Tiers of the KV cache on a GPU: tables, and the chart of docs/scheduling.md, docs/images/kv-tiers.svg, which
`python -m benchmarks.render.kv_tiers` draws."""

from html import escape
from statistics import median

from benchmarks.render.cells import ROOT, Json, results, share, span, table, times

PICTURE = ROOT / "docs" / "images" / "kv-tiers.svg"
_TIERS = (
    ("no host tier", "kv_none", ("kv_plugin_none",)),
    ("host tier of 16 GiB", "kv_16", ("kv_plugin_16", "kv_exclusive_16")),
    ("host tier of 64 GiB", "kv_64", ("kv_plugin_64",)),
    ("all contexts fit on the GPU", "kv_all", ()),
)
_PLUGIN = "with batch-agent-vllm", "its exclusive tier"
_WIDTH, _NAMES, _BARS, _ROW, _HEAD, _GAP = 860, 210, 560, 22, 30, 14
_STYLE = """
    .bg { fill: #ffffff; } text { fill: #1c2333; } .name { font-weight: 600; }
    .small { font-size: 12.5px; fill: #55607a; }
    .bar { fill: #b9c3d8; } .ours { fill: #4a78c4; } .plugin { fill: #2d8a62; }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #12151d; } text { fill: #e8ecf5; } .small { fill: #a5afc6; } .bar { fill: #4a5570; }
    }
"""


def _parts() -> Json:
    """Of both runs; of the later one, what both measured."""
    later = {
        name: part
        for name, part in results("gpu_kv_exclusive")["parts"].items()
        if "not_begun" not in part or "ours" in part
    }
    return {**results("gpu_kv_tiers")["parts"], **later}


def kv_tiers() -> str:
    parts = _parts()
    rows = []
    for title, tier, plugins in _TIERS:
        loop, ours = parts[tier]["loop"], parts[tier]["ours"]
        hinted = [parts[plugin]["ours"] for plugin in plugins]
        ways = [loop, ours, *hinted, *([] for _ in _PLUGIN[len(hinted) :])]
        rows += [
            [
                f"**wall**: {title}",
                times(_middle(ours, "wall_s") / _middle(loop, "wall_s")),
                *(_span(runs, "wall_s") for runs in ways),
            ],
            ["... first result", "", *(_span(runs, "first_result_s") for runs in ways)],
            [
                "... cache hits, later turns",
                "",
                *(_shares(runs) for runs in ways),
            ],
        ]
    four = parts["kv_workers"]["four"]
    rows.append(["**wall**: no host tier, four workers", "", "", _span(four, "wall_s"), "", ""])
    return table(["", "BatchAgent / all at once", "all at once", "BatchAgent", *_PLUGIN], rows)


def kv_keep_warm() -> str:
    part = _parts()["kv_keep_warm"]
    ways: list[list[Json]] = [part[way] for way in ("off", "on")]
    waits = [[run["ttft_later_turns_s"] for run in way] for way in ways]
    rows = [
        ["wall", *(_span(way, "wall_s") for way in ways)],
        ["time to first token of later turns, p50", *(_span(wait, "p50") for wait in waits)],
        ["... p95", *(_span(wait, "p95") for wait in waits)],
        ["prompt tokens computed for agents", *(_tokens(way, "computed_tokens") for way in ways)],
        ["tokens of keep-warm requests", *(_tokens(way, "keep_warm_tokens") for way in ways)],
    ]
    return table(["", "without", "with `kvflow=True`"], rows)


def picture() -> str:
    parts = _parts()
    longest = max(_middle(parts[tier]["loop"], "wall_s") for _, tier, _ in _TIERS)
    drawn, top = [], 34
    for title, tier, plugins in _TIERS:
        bars = [("all at once", "bar", parts[tier]["loop"]), ("BatchAgent", "ours", parts[tier]["ours"])]
        bars += [(name, "plugin", parts[plugin]["ours"]) for name, plugin in zip(_PLUGIN, plugins, strict=False)]
        drawn.append(f'  <text class="name" x="20" y="{top + 18}">{escape(title)}</text>')
        top += _HEAD
        for name, kind, runs in bars:
            drawn.append(_bar(name, kind, runs, longest, top))
            top += _ROW
        top += _GAP
    font = 'font-family="ui-sans-serif, system-ui, sans-serif" font-size="15"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" {font}>'
    ground = f'  <rect class="bg" width="{_WIDTH}" height="{top}"/>'
    what = "128 agents, 4 turns, 8,000 tokens each; one H200, a KV cache that holds 36 of them; seconds"
    under = f'  <text class="small" x="20" y="24">{what}</text>'
    return "\n".join([head, f"  <style>{_STYLE}  </style>", ground, under, *drawn, "</svg>"]) + "\n"


def _bar(name: str, kind: str, runs: list[Json], longest: float, top: int) -> str:
    wall, first = _middle(runs, "wall_s"), _middle(runs, "first_result_s")
    width = _BARS * wall / longest
    text = f'  <text class="small" x="{_NAMES - 10}" y="{top + 13}" text-anchor="end">{escape(name)}</text>'
    bar = f'<rect class="bar {kind}" x="{_NAMES}" y="{top}" width="{width:.1f}" height="{_ROW - 6}" rx="3"/>'
    shown = f"{wall:.0f}, first result {first:.0f}"
    inside = width > _BARS / 2
    at, anchor = (_NAMES + width - 8, "end") if inside else (_NAMES + width + 8, "start")
    style = ' style="fill: #ffffff"' if inside and kind != "bar" else ""
    return f'{text}{bar}<text class="small" x="{at:.1f}" y="{top + 13}" text-anchor="{anchor}"{style}>{shown}</text>'


def _middle(runs: list[Json], name: str) -> float:
    return float(median(run[name] for run in runs))


def _span(runs: list[Json], name: str) -> str:
    return span([run[name] for run in runs]) if runs else ""


def _tokens(runs: list[Json], name: str) -> str:
    return span([run[name] for run in runs], lambda tokens: f"{tokens:,.0f}")


def _shares(runs: list[Json]) -> str:
    return span([run["cached_share_later_turns"] for run in runs], share) if runs else ""


def main() -> None:
    PICTURE.write_text(picture())
    print(PICTURE)


if __name__ == "__main__":
    main()
