"""A run as it goes, in a notebook: one block of HTML in the cell, which is replaced as it changes.

It needs no ipywidgets: those have to be installed on both sides, and their state is gone when a notebook is opened
again. What is displayed last stays in the cell."""

from importlib import import_module
from types import TracebackType
from typing import Any, Self

from ...core.events import Event
from ..text.flow_summary import flow_lines_so_far
from ..text.summary import summary_lines
from .notebook_html import state_html
from .redraw_loop import RedrawLoop
from .state import LiveState

_TIMES_A_SECOND = 4


class NotebookProgress:
    """Works from a thread, so also while the notebook's own loop is blocked by `run_sync`."""

    def __init__(self) -> None:
        self._redrawing = RedrawLoop(state_html, self._show, _TIMES_A_SECOND)
        self._display: Any = None
        self._shown = ""

    @property
    def board(self) -> LiveState:
        return self._redrawing.board

    def emit(self, event: Event) -> None:
        self._redrawing.emit(event)

    def __enter__(self) -> Self:
        self._display = import_module("IPython.display").display(_bundle(""), raw=True, display_id=True)
        self._redrawing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redrawing.stop()
        board, seconds = self.board, self._redrawing.seconds
        if board.has_begun:
            lines = flow_lines_so_far(board, seconds) if board.is_flow else summary_lines(board, seconds)
            self._display.update(_bundle(state_html(board, seconds, lines), "\n".join(lines)), raw=True)
        else:
            self._display.update(_bundle(""), raw=True)

    def _show(self, html: str) -> None:
        if html != self._shown:
            self._shown = html
            self._display.update(_bundle(html), raw=True)


def _bundle(html: str, text: str = "batch-agent") -> dict[str, str]:
    """`text`: for who cannot show HTML."""
    return {"text/html": html, "text/plain": text}
