"""Our end of a warden."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

from .command import CannotStart, ProgramLost
from .supervisor_process import STOP

_log = logging.getLogger("batch_agent")
_FAILED = {
    "folder": "its folder cannot be entered",
    "program": "it, or the interpreter in its first line, cannot be executed",
}


class SupervisorChannel:
    """What a warden is told, what it tells. Once it has ended nothing of the program is there any more; `on_over` is
    called then."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", link: socket.socket, on_over: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._process = process
        self._socket = link
        self._on_over = on_over
        self._heard = bytearray()
        self._program: int | None = None
        self._code: int | None = None
        self._failure = ""
        self._is_begun = asyncio.Event()
        self._is_over = asyncio.Event()
        self._loop.add_reader(link, self._hear)

    async def start(self, order: bytes) -> None:
        """Returns when the program runs. Raises CannotStart."""
        with suppress(OSError):  # a warden that ended: we hear of it below
            await self._loop.sock_sendall(self._socket, order)
        await self._is_begun.wait()
        if self._program is None:
            raise CannotStart(f"{self._name!r} cannot be started: {self._failure or 'its warden ended at once'}.")

    async def ended(self) -> int:
        """Raises ProgramLost."""
        await self._is_over.wait()
        if self._code is None:
            raise ProgramLost(f"How {self._name!r} ended is not known: its warden was killed, or could not kill it.")
        return self._code

    async def stop(self) -> None:
        """With the grace of its order, which a cancellation cuts short. It then ends within moments, and is waited for:
        nobody else would clear it away."""
        cancelled: asyncio.CancelledError | None = None
        if self._program is None:
            self.hurry()
        else:
            with suppress(OSError):
                self._socket.send(STOP)
        while not self._is_over.is_set():
            try:
                await self._is_over.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                self.hurry()
        self._socket.close()
        if cancelled is not None:
            raise cancelled

    def hurry(self) -> None:
        """A stop without grace."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _hear(self) -> None:
        try:
            chunk = self._socket.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            chunk = b""
        self._heard += chunk
        while b"\n" in self._heard:
            report, _, self._heard = self._heard.partition(b"\n")
            self._take(report.decode().split())
        if not chunk and not self._is_over.is_set():
            self._lost()

    def _take(self, report: list[str]) -> None:
        match report:
            case ["started", program]:
                self._program = int(program)
                self._is_begun.set()
            case ["failed", step, number]:
                self._failure = f"{_FAILED[step]}: {os.strerror(int(number))}"
            case ["ended", code, left]:
                self._code = None if code == "None" else int(code)
                if int(left):
                    _log.warning("%s processes that %r started cannot be killed: another user's?", left, self._name)
                self._over()
            case _:
                raise AssertionError(f"A warden tells {report!r}.")

    def _lost(self) -> None:
        """The warden has ended without telling how the program did: it was killed, or there was no program."""
        if self._program is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._program, signal.SIGKILL)
        self._over()

    def _over(self) -> None:
        self._loop.remove_reader(self._socket)
        self._process.wait()  # it is about to exit, if it has not yet
        self._on_over()
        self._is_begun.set()
        self._is_over.set()
