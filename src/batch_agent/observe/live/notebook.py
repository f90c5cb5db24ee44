"""Live progress in a notebook: one self-contained block of HTML in the cell, replaced as the run proceeds.

It does not need ipywidgets, which must be installed on both sides and lose their state when the notebook is reopened.
The final block stays in the cell. Its colors are readable on light and dark pages."""

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from ...core.events import Event
from ..sanitize import sanitize
from ..text.run_outputs import RunOutputs
from ..text.text_format import duration
from .redraw_loop import RedrawLoop
from .state import LiveStage, LiveState
from .view_rows import Row, Segment, Tone, clock, errors, progress, results, rows, title

_GREEN, _RED, _BLUE, _GREY = "#2e9e5b", "#d9534f", "#3b8fc4", "rgba(128,128,128,.25)"
_STYLES: dict[Tone, str] = {
    "": "", "good": f"color:{_GREEN}", "bad": f"color:{_RED}", "busy": f"color:{_BLUE}", "quiet": "opacity:.65",
}  # fmt: skip
_MAX_ERRORS = 8
_BLOCK = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;max-width:900px;font-variant-numeric:tabular-nums"
)
_TABLE = "border-collapse:collapse;border:0;color:inherit;font-size:inherit;width:100%;table-layout:fixed"
_CELL = "padding:1px 0;text-align:left;border:0;background:none;white-space:nowrap;overflow:hidden"


def state_html(state: LiveState, seconds: float, summary: Sequence[str] = ()) -> str:
    """`summary`: lines shown at the end, instead of the live rows."""
    if not state.has_started:
        return _block(f"<div>{escape(sanitize(state.notice) or 'Connecting ...')}</div>")
    time = [Segment(duration(seconds))] if summary else clock(state, seconds)
    who, when = f"<b>{escape(title(state))}</b>", f"<span>{_segments(time)}</span>"
    head = f'<div style="display:flex;justify-content:space-between">{who}{when}</div>'
    stages = "".join(_stage(name, stage) for name, stage in state.stages.items())
    if summary:
        return _block(head, stages, "".join(f"<div>{escape(sanitize(line, 600))}</div>" for line in summary))
    lists = [("errors", list(errors(state))[:_MAX_ERRORS]), ("latest", list(results(state)))]
    table = "".join(map(_row, rows(state))) + "".join(_list_rows(heading, each) for heading, each in lists)
    return _block(head, stages, f'<table style="{_TABLE}">{table}</table>')


def _block(*parts: str) -> str:
    return f'<div class="batch-agent" style="{_BLOCK}">{"".join(parts)}</div>'


def _stage(name: str, stage: LiveStage) -> str:
    """Bar of answered, failed and running agents, with the numbers below."""
    stats = stage.stats
    counts = ((stats.ok, _GREEN), (stats.failed, _RED), (len(stage.agents), _BLUE))
    total = max(stage.total or 0, sum(count for count, _ in counts), 1)
    parts = "".join(
        f'<div style="width:{100 * count / total:.2f}%;background:{color}"></div>' for count, color in counts if count
    )
    bar = f'<div style="display:flex;height:6px;border-radius:3px;overflow:hidden;background:{_GREY}">{parts}</div>'
    label = f"<b>{escape(sanitize(name))}</b> " if name else ""
    return f'<div style="margin:4px 0">{bar}{label}{_segments(progress(name, stage))}</div>'


def _row(row: Row) -> str:
    gauge = ""
    if row.fill is not None:
        share = 100 * min(max(row.fill, 0.0), 1.0)
        gauge = (
            f'<span style="display:inline-block;width:90px;height:7px;margin-right:8px;background:{_GREY}">'
            f'<span style="display:block;width:{share:.1f}%;height:7px;background:{_BLUE}"></span></span>'
        )
    label, content = _cell(_segment(Segment(row.label, "quiet")), "width:90px"), _cell(gauge + _segments(row.segments))
    return f'<tr style="background:none">{label}{content}</tr>'


def _list_rows(heading: str, listed: Sequence[Row]) -> str:
    return "".join(
        _row(Row(heading if at == 0 else "", (Segment(row.label, "quiet"), *row.segments), 0))
        for at, row in enumerate(listed)
    )


def _cell(content: str, style: str = "") -> str:
    return f'<td style="{_CELL};{style}">{content}</td>'


def _segments(segments: Iterable[Segment]) -> str:
    return " &middot; ".join(map(_segment, segments))


def _segment(segment: Segment) -> str:
    return (
        f'<span style="{_STYLES[segment.tone]}">{escape(segment.text)}</span>' if segment.tone else escape(segment.text)
    )


_UPDATES_PER_SECOND = 4


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter, VS Code or Colab."""
    ipython = sys.modules.get("IPython")  # the kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


class NotebookProgress:
    """Progress that updates a cell from a thread, also while `run_sync` blocks the notebook's event loop."""

    def __init__(self, outputs: RunOutputs | None = None) -> None:
        """`outputs`: shown at the end, below the summary."""
        self._outputs = outputs or RunOutputs()
        self._redraw_loop = RedrawLoop(state_html, self._show, _UPDATES_PER_SECOND)
        self._display: Any = None
        self._shown = ""

    @property
    def state(self) -> LiveState:
        return self._redraw_loop.state

    def emit(self, event: Event) -> None:
        self._redraw_loop.emit(event)

    def __enter__(self) -> Self:
        self._display = import_module("IPython.display").display(_bundle(""), raw=True, display_id=True)
        self._redraw_loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redraw_loop.stop()
        state, seconds = self.state, self._redraw_loop.seconds
        if state.has_started:
            lines = self._outputs.end_lines(state, seconds, error)
            self._display.update(_bundle(state_html(state, seconds, lines), "\n".join(lines)), raw=True)
        else:
            self._display.update(_bundle(""), raw=True)

    def _show(self, html: str) -> None:
        if html != self._shown:
            self._shown = html
            self._display.update(_bundle(html), raw=True)


def _bundle(html: str, text: str = "batch-agent") -> dict[str, str]:
    """`text`: for front ends without HTML."""
    return {"text/html": html, "text/plain": text}
