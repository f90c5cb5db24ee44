"""A board as a block of HTML, for a notebook's light and dark pages: it has no colors of its own but those that can be
read on both, and needs nothing from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape

from ..sanitize import sanitize
from ..text.formatting import duration
from .state import LiveStage, LiveState
from .view_rows import Bit, Row, Tone, clock, errors, progress, results, rows, title

_GREEN, _RED, _BLUE, _GREY = "#2e9e5b", "#d9534f", "#3b8fc4", "rgba(128,128,128,.25)"
_STYLES: dict[Tone, str] = {
    "": "", "good": f"color:{_GREEN}", "bad": f"color:{_RED}", "busy": f"color:{_BLUE}", "quiet": "opacity:.65",
}  # fmt: skip
_MOST_ERRORS = 8
_BLOCK = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;max-width:900px;font-variant-numeric:tabular-nums"
)
_TABLE = "border-collapse:collapse;border:0;color:inherit;font-size:inherit;width:100%;table-layout:fixed"
_CELL = "padding:1px 0;text-align:left;border:0;background:none;white-space:nowrap;overflow:hidden"


def state_html(board: LiveState, seconds: float, summary: Sequence[str] = ()) -> str:
    """`summary`: what is said at the end, in the place of what only matters before it."""
    if not board.has_begun:
        return _block(f"<div>{escape(sanitize(board.notice) or 'Connecting ...')}</div>")
    time = [Bit(duration(seconds))] if summary else clock(board, seconds)
    who, when = f"<b>{escape(title(board))}</b>", f"<span>{_bits(time)}</span>"
    head = f'<div style="display:flex;justify-content:space-between">{who}{when}</div>'
    stages = "".join(_stage(name, stage) for name, stage in board.stages.items())
    if summary:
        return _block(head, stages, "".join(f"<div>{escape(sanitize(line, 600))}</div>" for line in summary))
    lists = [("errors", list(errors(board))[:_MOST_ERRORS]), ("latest", list(results(board)))]
    table = "".join(map(_row, rows(board))) + "".join(_listed(heading, each) for heading, each in lists)
    return _block(head, stages, f'<table style="{_TABLE}">{table}</table>')


def _block(*parts: str) -> str:
    return f'<div class="batch-agent" style="{_BLOCK}">{"".join(parts)}</div>'


def _stage(name: str, stage: LiveStage) -> str:
    """A bar of what was answered, failed and is under way, and its numbers below."""
    tally = stage.tally
    counts = ((tally.ok, _GREEN), (tally.failed, _RED), (len(stage.agents), _BLUE))
    total = max(stage.of or 0, sum(count for count, _ in counts), 1)
    parts = "".join(
        f'<div style="width:{100 * count / total:.2f}%;background:{color}"></div>' for count, color in counts if count
    )
    bar = f'<div style="display:flex;height:6px;border-radius:3px;overflow:hidden;background:{_GREY}">{parts}</div>'
    label = f"<b>{escape(sanitize(name))}</b> " if name else ""
    return f'<div style="margin:4px 0">{bar}{label}{_bits(progress(name, stage))}</div>'


def _row(row: Row) -> str:
    gauge = ""
    if row.full is not None:
        share = 100 * min(max(row.full, 0.0), 1.0)
        gauge = (
            f'<span style="display:inline-block;width:90px;height:7px;margin-right:8px;background:{_GREY}">'
            f'<span style="display:block;width:{share:.1f}%;height:7px;background:{_BLUE}"></span></span>'
        )
    label, said = _cell(_bit(Bit(row.label, "quiet")), "width:90px"), _cell(gauge + _bits(row.bits))
    return f'<tr style="background:none">{label}{said}</tr>'


def _listed(heading: str, listed: Sequence[Row]) -> str:
    return "".join(
        _row(Row(heading if at == 0 else "", (Bit(row.label, "quiet"), *row.bits), 0)) for at, row in enumerate(listed)
    )


def _cell(content: str, style: str = "") -> str:
    return f'<td style="{_CELL};{style}">{content}</td>'


def _bits(bits: Iterable[Bit]) -> str:
    return " &middot; ".join(map(_bit, bits))


def _bit(bit: Bit) -> str:
    return f'<span style="{_STYLES[bit.tone]}">{escape(bit.text)}</span>' if bit.tone else escape(bit.text)
