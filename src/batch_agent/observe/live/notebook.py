"""Live progress in a notebook: one block of HTML in the cell, which is replaced as the run proceeds.

It does not need ipywidgets, which must be installed on both sides and lose their state when the notebook is reopened.
The last display stays in the cell."""

import sys
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from ...core.events import Event
from ..text.flow_summary import partial_flow_summary_lines
from ..text.summary import summary_lines
from .notebook_html import state_html
from .redraw_loop import RedrawLoop
from .state import LiveState

_UPDATES_PER_SECOND = 4


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter, VS Code or Colab."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


class NotebookProgress:
    """Progress that updates a cell from a thread, also while `run_sync` blocks the notebook's event loop."""

    def __init__(self) -> None:
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
            lines = partial_flow_summary_lines(state, seconds) if state.is_flow else summary_lines(state, seconds)
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
