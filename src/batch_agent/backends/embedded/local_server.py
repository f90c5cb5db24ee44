"""Parent side of the embedded model, which runs as an HTTP server in a child process."""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from . import server_process as child
from .dequantise import fastest_weights
from .model_cache import EmbeddedModelError
from .server_process import ChildConfig
from .settings import LocalSettings
from .weights import DEFAULT_MODEL, find_weights

START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0
REASON_LINES = 8


class LocalServer:
    """A running llama.cpp server on 127.0.0.1 that speaks the OpenAI HTTP API at `url`.

    It dies with this process, however this process ends. `context_tokens` is what one request may use, prompt and
    answer together; `slots` requests are computed at once, and more wait in the server's own queue.
    """

    def __init__(self, process: Process, *, url: str, slots: int, context_tokens: int, model_name: str) -> None:
        self._process = process
        self.url = url
        self.slots = slots
        self.context_tokens = context_tokens
        self.model_name = model_name

    @classmethod
    async def start(cls, model: Path | None, *, slots: int | None, notify: Callable[[str], None]) -> Self:
        """Start a server for `model` (None: the default model, fetched on first use) and wait until it listens.

        `notify` may be called from another thread. Raises EmbeddedModelError; nothing keeps running then.
        """
        if importlib.util.find_spec("xllamacpp") is None:
            raise EmbeddedModelError(
                "The embedded model needs the package xllamacpp: pip install 'batch-agent[local]', "
                "or use another backend."
            )
        settings = LocalSettings.from_environment(slots)
        path = await asyncio.to_thread(_choose_weights, model, notify)
        config = ChildConfig(
            model=str(path.absolute()),
            name=DEFAULT_MODEL if model is None else path.stem,
            slots=settings.slots,
            context_tokens=settings.context_tokens,
            threads=settings.threads,
            jinja=model is not None,
            verbose=settings.log is not None,
        )
        with _opened_log(settings.log) as log:
            process = await _spawn(config, log)
            try:
                ready = await _first_line(process, log)
            except BaseException:
                await _stop(process)
                raise
        return cls(process, model_name=config.name, **json.loads(ready))

    async def aclose(self) -> None:
        """Stop the server: SIGTERM, then SIGKILL when that does not help. May be called again."""
        await _stop(self._process)


def _choose_weights(model: Path | None, notify: Callable[[str], None]) -> Path:
    found = find_weights(model, notify)
    return found if model is not None else fastest_weights(found, notify)


def _opened_log(path: Path | None) -> IO[bytes]:
    """llama.cpp's log: the user's log file, or a temporary file that is read only if the start fails."""
    if path is None:
        return tempfile.TemporaryFile()
    try:
        return path.open("a+b")
    except OSError as error:
        raise EmbeddedModelError(
            f"BATCH_AGENT_LOCAL_LOG: {str(path)!r} cannot be written: {error.strerror}."
        ) from error


async def _spawn(config: ChildConfig, log: IO[bytes]) -> Process:
    # Run by path, not with -m: importing batch_agent there would cost time and memory for nothing.
    # A new session keeps Ctrl-C in the terminal away from it while Python is starting.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", child.__file__, config.to_json(),
        stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True,
    )  # fmt: skip


async def _first_line(process: Process, log: IO[bytes]) -> bytes:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT):
            if line := await process.stdout.readline():
                return line
            failure = f"it exited with status {await process.wait()}"
    except TimeoutError:
        failure = f"it was not ready after {START_TIMEOUT:.0f} s"
    raise EmbeddedModelError(f"The embedded model did not start: {failure}. {_tail(log)}")


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _tail(log: IO[bytes]) -> str:
    """The last lines of the log, of which the last may be incomplete."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 8192))
    lines = log.read().decode(errors="replace").strip().splitlines()[-REASON_LINES:]
    return "Its log ends with:\n" + "\n".join(lines) if lines else "Its log is empty."
