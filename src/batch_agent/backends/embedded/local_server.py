"""Parent side of the embedded model, which runs as an HTTP server in a child process, set up from the environment."""

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

from ...core.fast_dataclass import dataclass
from . import server_process as child
from .dequantise import fastest_weights
from .model_cache import EmbeddedModelError
from .server_process import ChildConfig
from .weights import DEFAULT_MODEL, find_weights

DEFAULT_SLOTS = 4
DEFAULT_CONTEXT_TOKENS = 3072  # a prompt of 2,000 tokens and a long answer
MAX_THREADS = 8  # a model this small gains nothing from more


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """`context_tokens` is per slot; `log` is None when llama.cpp stays silent."""

    slots: int
    context_tokens: int
    threads: int
    log: Path | None

    @classmethod
    def from_environment(cls, slots: int | None) -> Self:
        """Raises EmbeddedModelError when a variable does not hold a positive number."""
        log = os.environ.get("BATCH_AGENT_LOCAL_LOG")
        return cls(
            slots=slots or DEFAULT_SLOTS,
            context_tokens=_positive("BATCH_AGENT_LOCAL_CONTEXT") or DEFAULT_CONTEXT_TOKENS,
            threads=_positive("BATCH_AGENT_LOCAL_THREADS") or default_threads(usable_cores()),
            log=Path(log).expanduser() if log else None,
        )


def default_threads(cores: int) -> int:
    """All cores but one, which is left to the agents: llama.cpp's threads spin while they wait, so one thread too many
    slows all of them."""
    return min(MAX_THREADS, max(1, cores - 1))


def usable_cores() -> int:
    """The cores this process may use, under its affinity mask and its container's CPU quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _positive(variable: str) -> int | None:
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise EmbeddedModelError(f"{variable} is {text!r}: set it to an integer >= 1.")
    return int(text)


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
