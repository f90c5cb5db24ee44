"""Channel to a supervisor process, for commands and reports."""

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
_FAILED_STEPS = {
    "folder": "its working directory cannot be entered",
    "program": "it, or the interpreter in its first line, cannot be executed",
}


class SupervisorChannel:
    """Parent's end of the channel. Calls `on_end` when the supervisor has ended, at which point no process of the
    program is left."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", channel: socket.socket, on_end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._process = process
        self._socket = channel
        self._on_end = on_end
        self._buffer = bytearray()
        self._program: int | None = None
        self._code: int | None = None
        self._failure = ""
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._loop.add_reader(channel, self._read)

    async def start(self, command: bytes) -> None:
        """Starts the program, and returns when it runs. Raises CannotStart."""
        with suppress(OSError):  # the supervisor has ended, which is reported below
            await self._loop.sock_sendall(self._socket, command)
        await self._started.wait()
        if self._program is None:
            raise CannotStart(f"{self._name!r} cannot be started: {self._failure or 'its supervisor exited at once'}.")

    async def wait(self) -> int:
        """The exit status, after the last process of the program has ended. Raises ProgramLost."""
        await self._ended.wait()
        if self._code is None:
            raise ProgramLost(
                f"The exit status of {self._name!r} is unknown: its supervisor was killed, or could not kill it."
            )
        return self._code

    async def stop(self) -> None:
        """Stops the program with the grace period of its command, which a cancellation cuts short. Always waits for the
        supervisor, because no other code reaps it."""
        cancelled: asyncio.CancelledError | None = None
        if self._program is None:
            self.kill()
        else:
            with suppress(OSError):
                self._socket.send(STOP)
        while not self._ended.is_set():
            try:
                await self._ended.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                self.kill()
        self._socket.close()
        if cancelled is not None:
            raise cancelled

    def kill(self) -> None:
        """Stops the program without a grace period."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            chunk = b""
        self._buffer += chunk
        while b"\n" in self._buffer:
            report, _, self._buffer = self._buffer.partition(b"\n")
            self._handle(report.decode().split())
        if not chunk and not self._ended.is_set():
            self._lost()

    def _handle(self, report: list[str]) -> None:
        match report:
            case ["started", program]:
                self._program = int(program)
                self._started.set()
            case ["failed", step, number]:
                self._failure = f"{_FAILED_STEPS[step]}: {os.strerror(int(number))}"
            case ["ended", code, left]:
                self._code = None if code == "None" else int(code)
                if int(left):
                    _log.warning(
                        "%s processes that %r started cannot be killed; they may belong to another user.",
                        left,
                        self._name,
                    )
                self._finish()
            case _:
                raise AssertionError(f"unexpected report of a supervisor: {report!r}")

    def _lost(self) -> None:
        """Handles a supervisor that ended without reporting an exit status, because it was killed or the program did
        not start."""
        if self._program is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._program, signal.SIGKILL)
        self._finish()

    def _finish(self) -> None:
        self._loop.remove_reader(self._socket)
        self._process.wait()  # if it has not exited yet, it is about to
        self._on_end()
        self._started.set()
        self._ended.set()
