"""Starting a warden, with the streams of the program that it will run."""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import IO, Literal

from ..core.fast_dataclass import dataclass
from . import supervisor_process as warden
from .command import Stdin


@dataclass(frozen=True, slots=True)
class Spawned:
    """A warden that waits for its order. What is in here is ours to close."""

    process: "subprocess.Popen[bytes]"
    link: socket.socket
    out: int
    err: int
    input: int | None = None
    """The writing end of its stdin, where that is a pipe."""


def spawn(stdin: str | Literal[Stdin.PIPE] | None) -> Spawned:
    """Raises OSError."""
    with ExitStack() as ours, ExitStack() as theirs:
        link, other_end = socket.socketpair()
        ours.enter_context(link)
        theirs.enter_context(other_end)
        out, out_end = _pipe(ours, theirs)
        err, err_end = _pipe(ours, theirs)
        read, write = _stdin(stdin, ours, theirs)
        process = subprocess.Popen(  # noqa: S603 - a file of ours
            [sys.executable, "-I", "-S", os.path.abspath(warden.__file__), str(other_end.fileno())],
            stdin=read,
            stdout=out_end,
            stderr=err_end,
            pass_fds=(other_end.fileno(),),
            start_new_session=True,  # whoever kills our process group must not kill the one that cleans up
        )
        ours.pop_all()
    link.setblocking(False)
    return Spawned(process, link, out, err, write)


def _stdin(
    stdin: str | Literal[Stdin.PIPE] | None, ours: ExitStack, theirs: ExitStack
) -> tuple[int | IO[bytes], int | None]:
    """What the program reads from, and where it is written to, if it is."""
    if stdin is None:
        return subprocess.DEVNULL, None
    if isinstance(stdin, str):
        return theirs.enter_context(_file(stdin)), None
    read_end, write_end = os.pipe()
    theirs.callback(os.close, read_end)
    ours.callback(os.close, write_end)
    return read_end, write_end


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    ours.callback(os.close, read_end)
    theirs.callback(os.close, write_end)
    return read_end, write_end


def _file(text: str) -> IO[bytes]:
    """Of a file, any program reads as much as it likes when it likes; nobody has to feed it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its caller closes it
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file
