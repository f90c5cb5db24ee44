"""Bar chart for the docs: `python -m benchmarks.peers.chart` draws docs/images/peers.svg from results/peers.json."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.peers.participants import OURS, PEERS
from benchmarks.report import RESULTS

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "peers.svg"
_WIDTH, _ROW, _HEAD, _GAP = 860, 24, 58, 26
_NAMES, _BARS = 210, 540
_STYLE = """
    .bg { fill: #ffffff; } text { fill: #1c2333; } .name { font-weight: 600; }
    .small { font-size: 12.5px; fill: #55607a; }
    .bar { fill: #b9c3d8; } .ours { fill: #4a78c4; } .line { stroke: #8a94ad; stroke-width: 1; }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #12151d; } text { fill: #e8ecf5; } .small { fill: #a5afc6; } .bar { fill: #4a5570; }
    }
"""
Bar = tuple[str, float]


def picture(parts: Mapping[str, Any]) -> str:
    """Two panels of bars on logarithmic scales: CPU against ours, wall against an ideal client."""
    single, tools = parts["single_2000"], parts["ten_keys_64"]
    ours = single["medians"]["batch_agent"]["cpu_s"]
    panels = [
        (
            "CPU, BatchAgent = 1 (logarithmic)",
            f"{single['agents']:,} agents of {single['what']}",
            [(peer, one["cpu_s"] / ours) for peer, one in single["medians"].items()],
        ),
        (
            "Wall time, ideal client = 1 (logarithmic)",
            f"{tools['agents']:,} agents of {tools['what']}",
            [(peer, one["wall_s"] / tools["ideal_s"]) for peer, one in tools["medians"].items()],
        ),
    ]
    drawn, top = [], 0
    for title, work, bars in panels:
        drawn.append(_panel(title, work, bars, top))
        top += _HEAD + _ROW * len(bars) + _GAP
    font = 'font-family="ui-sans-serif, system-ui, sans-serif" font-size="15"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" {font}>'
    ground = f'  <rect class="bg" width="{_WIDTH}" height="{top}"/>'
    return "\n".join([head, f"  <style>{_STYLE}  </style>", ground, *drawn, "</svg>"]) + "\n"


def _panel(title: str, work: str, bars: Sequence[Bar], top: int) -> str:
    least, most = (bound(value for _, value in bars) for bound in (min, max))
    start, end = math.log10(min(least, 1.0) / 2), math.log10(max(most, 10.0))

    def at(value: float) -> float:
        return _NAMES + (math.log10(value) - start) / (end - start) * _BARS

    bottom = top + _HEAD + _ROW * len(bars) - 4
    one = f'  <line class="line" x1="{at(1):.1f}" x2="{at(1):.1f}" y1="{top + _HEAD - 8}" y2="{bottom}"/>'
    rows = [
        _bar(PEERS[peer].title, value, at(value), top + _HEAD + _ROW * row, is_ours=peer in OURS)
        for row, (peer, value) in enumerate(sorted(bars, key=lambda bar: bar[1]))
    ]
    head = f'  <text class="name" x="20" y="{top + 24}">{escape(title)}</text>'
    under = f'  <text class="small" x="20" y="{top + 43}">{escape(work)}</text>'
    return "\n".join([head, under, *rows, one])


def _bar(name: str, value: float, end: float, top: int, *, is_ours: bool) -> str:
    kind = "bar ours" if is_ours else "bar"
    text = f'  <text class="small" x="{_NAMES - 10}" y="{top + 13}" text-anchor="end">{escape(name)}</text>'
    bar = f'<rect class="{kind}" x="{_NAMES}" y="{top}" width="{max(end - _NAMES, 2):.1f}" height="{_ROW - 7}" rx="3"/>'
    shown = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f'{text}{bar}<text class="small" x="{max(end, _NAMES + 2) + 8:.1f}" y="{top + 13}">{shown}</text>'


def main() -> None:
    PICTURE.write_text(picture(json.loads((RESULTS / "peers.json").read_text())["parts"]))
    print(PICTURE)


if __name__ == "__main__":
    main()
