"""Draws docs/images/layers.svg from the import linter's layers: `python -m scripts.layer_picture`.

The picture has one row per layer of `[tool.importlinter]` in pyproject.toml, so that both always agree."""

import textwrap
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "layers.svg"
_WIDTH, _MARGIN, _GAP = 860, 20, 12
_PER_LINE = 5
_LINE_HEIGHT, _PADDING = 17, 31
_CHARACTER = 7.0
"""Width of a character of the small text, about."""
_STYLE = """
    .box { fill: #f4f6fb; stroke: #8a94ad; stroke-width: 1.2; }
    .pure { fill: #eaf7ee; stroke: #6aa37a; } .core { fill: #fff6e0; stroke: #c79a3a; }
    .engine { fill: #e6effd; stroke: #4a78c4; } .bg { fill: #ffffff; }
    text { fill: #1c2333; } .small { font-size: 12.5px; fill: #55607a; } .name { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #12151d; } text { fill: #e8ecf5; } .small { fill: #a5afc6; }
      .box { fill: #1d2230; stroke: #5b6680; } .pure { fill: #16291c; stroke: #4f8a60; }
      .core { fill: #2c2412; stroke: #a8822f; } .engine { fill: #16233b; stroke: #4a78c4; }
    }
"""
_CONTENTS = {
    "cli": "batch-agent init, run, worker, resume, inspect, serve, report, export, plan, lint, doctor, demo, sim",
    "api": "BatchAgent.run, stream, run_with_reduce, run_with_map_reduce, lint, plan, replay",
    "flows": "stages without barriers",
    "pools": "many prompts over endpoints",
    "forecasting": "tokens, time, cost of a run",
    "evaluation": "several models, judges",
    "cluster.ray": "workers on a Ray cluster",
    "run": "one run: setup, resources, runner, replay",
    "run.runner": "drives one run",
    "run.replay": "a run again, from its checkpoint",
    "run.resources": "what runs share: store, admission, budget, tools",
    "run.setup": "validation, backend, tools, compiled plan",
    "run.budget": "budget, earlier spending",
    "run.plan_check": "compares with the stored plan",
    "programs": "programs as agents: gateway, runtimes, workspaces",
    "programs.host": "opens gateway and runtime for a run",
    "programs.gateway": "model API for programs",
    "programs.runtimes": "OpenCode, Codex, command lines",
    "programs.workspace": "clones of a snapshot",
    "programs.supervisor": "child processes",
    "cluster": "coordinator (Redis, in memory), leases, shared tool calls, limits and budget",
    "engine": "agent loop, admission, slots",
    "backends": "dialects and flavors over HTTP; embedded",
    "tools": "functions, sharing, MCP",
    "store": "facts: memory, SQLite",
    "observe": "dashboard, report, telemetry",
    "data": "files, tables, SQL",
    "sim": "simulated engine",
    "testing": "scripted backend",
    "aio": "deadlines, cancellation",
    "objects": "object stores: S3, GCS, Azure",
    "supervisor": "child processes",
    "plan": "template, layout, ordering, lint, chunking; pure",
    "agent": "conversation, answers, compaction; pure",
    "schedule": "slot queue, limits, KV ledger; pure",
    "scores": "scorers, metrics, comparisons; pure",
    "core": "data types (messages, facts, events, results, spec), errors, and the protocols of all seams; pure",
}
_KINDS = {"plan": "pure", "agent": "pure", "schedule": "pure", "scores": "pure", "core": "core", "engine": "engine"}


def layers() -> list[list[str]]:
    """The linter's layers from the top down, each with its sibling modules."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(one for one in linter["contracts"] if one["type"] == "layers")
    prefix = f"{linter['root_package']}."
    return [[name.strip().removeprefix(prefix) for name in layer.split("|")] for layer in contract["layers"]]


def picture(drawn: Sequence[Sequence[str]]) -> str:
    """An SVG with a row of boxes per layer, in lines of at most five."""
    boxes, top = [], _MARGIN
    for layer in drawn:
        for start in range(0, len(layer), _PER_LINE):
            line = layer[start : start + _PER_LINE]
            height = _PADDING + _LINE_HEIGHT * max(len(_text(name, len(line))) for name in line)
            boxes += [_box(name, at, len(line), top, height) for at, name in enumerate(line)]
            top += height + _GAP
    font = 'font-family="ui-sans-serif, system-ui, sans-serif" font-size="15"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 8}" {font}>'
    ground = f'  <rect class="bg" width="{_WIDTH}" height="{top + 8}"/>'
    return "\n".join([head, f"  <style>{_STYLE}  </style>", ground, *boxes, "</svg>"]) + "\n"


def _box(name: str, at: int, siblings: int, top: int, height: int) -> str:
    left, width = _MARGIN + at * (_box_width(siblings) + _GAP), _box_width(siblings)
    kind = f"box {_KINDS.get(name, '')}".strip()
    parts = [f'  <rect class="{kind}" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="8"/>']
    parts.append(f'  <text class="name" x="{left + 14:.0f}" y="{top + 20}">{escape(name)}</text>')
    for number, text in enumerate(_text(name, siblings), 1):
        y = top + 20 + _LINE_HEIGHT * number
        parts.append(f'  <text class="small" x="{left + 14:.0f}" y="{y}">{escape(text)}</text>')
    return "\n".join(parts)


def _text(name: str, siblings: int) -> list[str]:
    return textwrap.wrap(_CONTENTS.get(name, ""), int((_box_width(siblings) - 24) / _CHARACTER))


def _box_width(siblings: int) -> float:
    return (_WIDTH - 2 * _MARGIN - _GAP * (siblings - 1)) / siblings


def main() -> None:
    PICTURE.write_text(picture(layers()))
    print(PICTURE)


if __name__ == "__main__":
    main()
