"""Start of a supervisor process, with the streams of the program that it will run."""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import IO, Literal

from ..core.fast_dataclass import dataclass
from . import supervisor_process
from .command import Stdin


@dataclass(frozen=True, slots=True)
class Spawned:
    """A supervisor that waits for its command. The owner of this value closes its descriptors."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    out: int
    err: int
    input: int | None = None
    """The writing end of its stdin, where that is a pipe."""


def spawn(stdin: str | Literal[Stdin.PIPE] | None) -> Spawned:
    """Raises OSError."""
    with ExitStack() as ours, ExitStack() as theirs:
        channel, other_end = socket.socketpair()
        ours.enter_context(channel)
        theirs.enter_context(other_end)
        out, out_end = _pipe(ours, theirs)
        err, err_end = _pipe(ours, theirs)
        read, write = _stdin(stdin, ours, theirs)
        process = subprocess.Popen(  # noqa: S603 - a file of this package
            [sys.executable, "-I", "-S", os.path.abspath(supervisor_process.__file__), str(other_end.fileno())],
            stdin=read,
            stdout=out_end,
            stderr=err_end,
            pass_fds=(other_end.fileno(),),
            start_new_session=True,  # a signal to our process group must not kill the process that cleans up
        )
        ours.pop_all()
    channel.setblocking(False)
    return Spawned(process, channel, out, err, write)


def _stdin(
    stdin: str | Literal[Stdin.PIPE] | None, ours: ExitStack, theirs: ExitStack
) -> tuple[int | IO[bytes], int | None]:
    """The program's standard input, and its writing end if it is a pipe."""
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
    """Temporary file, which the program reads at its own pace."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its caller closes it
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file
