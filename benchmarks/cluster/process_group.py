"""The processes of one measurement, as whoever measures sees them."""

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

from benchmarks.cluster.worker_process import Errand

_PATIENCE_S = 300.0
Numbers = dict[str, Any]


class Child:
    """A process with an errand."""

    def __init__(self, process: Process, words: IO[bytes]) -> None:
        self._process = process
        self._words = words
        self.was_killed = False

    @classmethod
    async def start(cls, errand: Errand) -> "Child":
        command = (sys.executable, "-m", "benchmarks.cluster.worker_process", errand.to_json())
        words = tempfile.TemporaryFile()  # noqa: SIM115
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=words), words)

    async def says(self) -> Numbers:
        """The next thing that it says. Ends the program if it fails."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_PATIENCE_S):
            line = await self._process.stdout.readline()
        if not line:
            self._words.seek(0)
            raise SystemExit(f"A process has failed.\n{self._words.read().decode()[-4000:]}")
        numbers: Numbers = json.loads(line)
        return numbers

    def tell(self) -> None:
        """To begin; a worker that has begun: to stop."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def kill(self) -> None:
        """As `kill -9` does. Nothing, if it has ended."""
        if self._process.returncode is None:
            self.was_killed = True
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def crew(errands: Sequence[Errand]) -> AsyncIterator[list[Child]]:
    """All are ready when the block begins; none is left when it ends."""
    children = [await Child.start(errand) for errand in errands]
    try:
        for child in children:
            await child.says()
        yield children
    finally:
        for child in children:
            await child.kill()
