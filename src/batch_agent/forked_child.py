"""Children that user code forks. A fork has a copy of the run, with the parent's sockets, files and exit handlers."""

import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType


class ForkGuard:
    """Block that calls user code. A child that the code forks ends where the block ends, as a program does that ends
    there, but without exit handlers: it neither goes on with the run nor cleans up after it."""

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            _exit(error)


def _exit(error: BaseException | None) -> None:
    """Does not return. What is written does not go through objects whose locks a thread of the parent may hold."""
    status = 1
    try:
        status, text = _status(error)
        os.write(2, text.encode(errors="replace"))
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.flush()
    finally:
        os._exit(status)


def _status(error: BaseException | None) -> tuple[int, str]:
    """Exit status and error message, as the interpreter's for an exception that reaches it."""
    if error is None:
        return 0, ""
    if not isinstance(error, SystemExit):
        return 1, "".join(traceback.format_exception(error))
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF, ""
    return 1, f"{error.code}\n"
