"""Terminal view of a run on `rich.live.Live`, with the interface of `batch_agent.observe.live.terminal.LiveProgress`.

Kept for benchmarks/terminal_frames.py: it is the alternative that ADR 23 compares.
"""

import logging
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console, Group
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from batch_agent.core.events import Event
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.redraw_loop import RedrawLoop
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.live.view_rows import stage_prefix

_UPDATES_PER_SECOND = 8


class LiveProgress:
    """The dashboard, below what else is printed. While another one is shown in the same process, it only counts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._redraw_loop = RedrawLoop(self._render, self._show, _UPDATES_PER_SECOND)
        self._is_shown = False
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    @property
    def state(self) -> LiveState:
        return self._redraw_loop.state

    def emit(self, event: Event) -> None:
        self._redraw_loop.emit(event)
        if self._is_shown and (lines := stage_prefix(event)):
            self._console.print(Text("\n").join(Text(line, "dim") for line in lines), soft_wrap=True)

    def __enter__(self) -> Self:
        if not (_is_redirected(sys.stdout) or _is_redirected(sys.stderr)):
            self._is_shown = True
            # Live redirects a pipe to the terminal, too.
            self._live._redirect_stdout = self._is_seen(sys.stdout)
            self._live._redirect_stderr = self._is_seen(sys.stderr)
            before = sys.stdout, sys.stderr
            self._live.start()
            self._redirect_handlers(dict(zip(map(id, before), (sys.stdout, sys.stderr), strict=True)))
            self._redraw_loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._is_shown = False
            try:
                self._redraw_loop.stop()
            finally:
                self._live.update("")
                for stream in (sys.stdout, sys.stderr):
                    if _is_redirected(stream):
                        stream.flush()
                self._live.stop()
                while self._handlers:
                    handler, stream = self._handlers.pop()
                    handler.setStream(stream)

    def _is_seen(self, stream: Any) -> bool:
        return stream is not None and (stream is self._console.file or stream.isatty())

    def _redirect_handlers(self, streams: dict[int, TextIO]) -> None:
        for handler in _stream_handlers():
            if id(handler.stream) in streams:
                self._handlers.append((handler, handler.stream))
                handler.setStream(streams[id(handler.stream)])

    def _render(self, state: LiveState, seconds: float) -> list[Text]:
        columns, lines = self._size
        return render(state, seconds, columns - 1, lines - 2)

    def _show(self, lines: list[Text]) -> None:
        self._live.update(Group("", *lines), refresh=True)

    @property
    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(cast(TextIO, self._console.file).fileno())
        except (OSError, ValueError):
            return os.terminal_size((80, 24))
        return size if size.columns and size.lines else os.terminal_size((80, 24))


def _is_redirected(stream: object) -> bool:
    return isinstance(stream, FileProxy)


def _stream_handlers() -> "Iterator[logging.StreamHandler[TextIO]]":
    known = logging.root.manager.loggerDict.values()
    for logger in [logging.root, *(each for each in list(known) if isinstance(each, logging.Logger))]:
        yield from (handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler))
