"""Counts the files and functions that set up a plain run: `python -m scripts.setup_functions [--loopback] [--names]`.

A plain run is one agent with one request and without tools. Set-up is what happens between the call of `BatchAgent.run`
and the moment when the first request is handed to the backend (`Backend.stream` is called). What counts is every
distinct function, method, property and lambda of the package whose frame is entered in that time, in whichever thread.
Not counted: the bodies of modules and classes and what they call while they are imported, comprehensions and generator
expressions, and methods that the dataclass decorator writes, with what writes them. The run is the first one of its
process, so caches are empty.

The backend is an object in this process. With `--loopback` it is the simulated engine behind HTTP on this machine, and
the count includes what it takes to connect to it and to learn what it can do.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import batch_agent
from batch_agent import BatchAgent
from batch_agent.backends.http_backend import HttpBackend
from batch_agent.core import fast_dataclass
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, Finished, Request, TextDelta, Usage
from batch_agent.sim.process import SimServer
from batch_agent.sim.sim_config import SimConfig

MOST = 60
"""Files that the set-up of a plain run may touch, with a backend in the process."""
_PACKAGE = str(Path(batch_agent.__file__).parent)
_DECORATOR = fast_dataclass.__file__
_NOT_FUNCTIONS = ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class _Backend:
    """The least that a backend can be."""

    traits = Traits("in process", "none", True, True, True, 8)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        yield _deltas()

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


_FIRST_REQUEST = (_Backend.stream.__wrapped__.__code__, HttpBackend.stream.__code__)  # type: ignore[attr-defined]


class Counted:
    """Profile function that collects the code of every function entered, until the first request."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._imports = threading.local()
        self._is_over = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "return" and code.co_name == "<module>":
            self._imports.depth = getattr(self._imports, "depth", 1) - 1
        if event != "call" or self._is_over:
            return
        if code.co_name == "<module>":
            self._imports.depth = getattr(self._imports, "depth", 0) + 1
        elif code in _FIRST_REQUEST:
            self._is_over = True
        elif self._is_function(code) and not getattr(self._imports, "depth", 0):
            self.codes.add(code)

    def _is_function(self, code: CodeType) -> bool:
        is_class_body = not code.co_flags & 0x02  # CO_NEWLOCALS
        is_ours = code.co_filename.startswith(_PACKAGE) and code.co_filename != _DECORATOR
        return is_ours and code.co_name not in _NOT_FUNCTIONS and not is_class_body


def count_set_up(backend: Any) -> Counted:
    """Runs one agent, and gives what was called before its request."""
    counted = Counted()

    async def run() -> None:
        threading.setprofile(counted)
        sys.setprofile(counted)
        try:
            await BatchAgent.run(task="Say {word}.", inputs=[{"word": "hello"}], backend=backend, progress=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    asyncio.run(run())
    return counted


def by_file(codes: set[CodeType]) -> Counter[str]:
    return Counter(str(Path(code.co_filename).relative_to(_PACKAGE)) for code in codes)


def main(options: list[str]) -> None:
    with ExitStack() as stack:
        codes = count_set_up(_loopback(stack) if "--loopback" in options else _Backend()).codes
    files = by_file(codes)
    for file, number in sorted(files.items()):
        print(f"{number:4}  {file}")
        if "--names" in options:
            for code in sorted(codes, key=lambda code: code.co_firstlineno):
                if code.co_filename.endswith(f"batch_agent/{file}"):
                    print(f"        {code.co_qualname}")
    print(f"{len(codes):4}  functions in {len(files)} files")
    if "--loopback" not in options and len(files) > MOST:
        sys.exit(f"The set-up of a plain run may touch {MOST} files.")


async def _deltas() -> AsyncIterator[Delta]:
    yield TextDelta("hello")
    yield Finished("stop", Usage(1, 1))


def _loopback(stack: ExitStack) -> str:
    server = stack.enter_context(SimServer(SimConfig(zero_latency=True)))
    return f"vllm://127.0.0.1:{server.port}"


if __name__ == "__main__":
    main(sys.argv[1:])
