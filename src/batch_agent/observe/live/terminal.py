"""A run as it goes, in a terminal."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console
from rich.text import Text

from ...core.events import Event
from .dashboard import render
from .redraw_loop import RedrawLoop
from .state import LiveState
from .stream_redirect import StreamRedirect, is_redirected
from .terminal_frame import Frame
from .view_rows import stage_prefix

_TIMES_A_SECOND = 8


class LiveProgress:
    """The dashboard, below whatever else is printed. While another is shown in the same process, it only counts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stream = cast(TextIO, console.file)
        self._frame = Frame(self._stream)
        self._redirecting = StreamRedirect(self._stream, self._frame)
        self._redrawing = RedrawLoop(self._look, self._show, _TIMES_A_SECOND)
        self._is_shown = False

    @property
    def board(self) -> LiveState:
        return self._redrawing.board

    def emit(self, event: Event) -> None:
        self._redrawing.emit(event)
        if self._is_shown and (lines := stage_prefix(event)):
            said = self._styled([Text(line, "dim") for line in lines])
            self._frame.above("".join(f"{line}\n" for line in said), self._stream)

    def __enter__(self) -> Self:
        if not is_redirected():
            self._is_shown = True
            self._frame.open()
            self._redirecting.start()
            self._redrawing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._is_shown = False
            try:
                self._redrawing.stop()
            finally:  # a second Ctrl-C must not leave a terminal without a cursor
                self._frame.close()
                self._redirecting.stop()

    def _look(self, board: LiveState, seconds: float) -> list[Text]:
        columns, lines = self._frame.size
        return render(board, seconds, columns - 1, lines - 2)

    def _show(self, lines: list[Text]) -> None:
        self._frame.draw(["", *self._styled(lines)])

    def _styled(self, lines: Sequence[Text]) -> list[str]:
        """With the colors that the terminal has, if any."""
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), end="", soft_wrap=True)
        return captured.get().split("\n")
