"""Live dashboard in a terminal."""

import io
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console
from rich.text import Text

from ...core.events import Event
from .dashboard import render
from .redraw_loop import RedrawLoop
from .state import LiveState
from .stream_redirect import StreamRedirect, is_redirected
from .terminal_frame import Frame
from .view_rows import stage_prefix

_UPDATES_PER_SECOND = 8


class LiveProgress:
    """Progress as a dashboard below other output. Nothing is shown while the process shows another one."""

    def __init__(self, console: Console) -> None:
        # Not `console` itself: it flushes its file, and redirects standard output to the null device if that fails.
        colors = cast(Any, console.color_system)
        self._painter = Console(file=io.StringIO(), force_terminal=True, color_system=colors, no_color=console.no_color)
        self._stream = cast(TextIO, console.file)
        self._frame = Frame(self._stream)
        self._redirect = StreamRedirect(self._stream, self._frame)
        self._redraw_loop = RedrawLoop(self._render, self._show, _UPDATES_PER_SECOND)
        self._is_shown = False

    @property
    def state(self) -> LiveState:
        return self._redraw_loop.state

    def emit(self, event: Event) -> None:
        self._redraw_loop.emit(event)
        if self._is_shown and (lines := stage_prefix(event)):
            styled = self._styled([Text(line, "dim") for line in lines])
            with suppress(OSError, ValueError):  # the run continues without its terminal
                self._frame.above("".join(f"{line}\n" for line in styled), self._stream)

    def __enter__(self) -> Self:
        if not is_redirected():
            self._is_shown = True
            self._frame.open()
            self._redirect.start()
            self._redraw_loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._is_shown = False
            try:
                self._redraw_loop.stop()
            finally:  # a second Ctrl-C must not leave a terminal without a cursor
                self._frame.close()
                self._redirect.stop()

    def _render(self, state: LiveState, seconds: float) -> list[Text]:
        columns, lines = self._frame.size
        return render(state, seconds, columns - 1, lines - 2)

    def _show(self, lines: list[Text]) -> None:
        self._frame.draw(["", *self._styled(lines)])

    def _styled(self, lines: Sequence[Text]) -> list[str]:
        """Lines with the escape codes for the terminal's colors."""
        with self._painter.capture() as captured:
            self._painter.print(Text("\n").join(lines), end="", soft_wrap=True)
        return captured.get().split("\n")
