"""Starts vLLM for a while, and stops all of it."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
from scripts.engines import guard

from .server_info import gpu_memory_used_mib

_EVERY = 0.5
_TOLD_EVERY = 10.0
_STOPS_WITHIN = guard.GRACE + 10
_FREE_MIB = 3_000
_FREED_WITHIN = 20.0
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONUNBUFFERED": "1",
}


class ServerFailed(Exception):
    """vLLM ended, or did not answer in time; the message has the end of its log."""


@asynccontextmanager
async def serve(
    python: str, model: Path, arguments: Sequence[str], *, log: Path, limit: float, vllm_path: str | None
) -> AsyncIterator[str]:
    """A vLLM of its own on a free port; yields its address. It ends with the block, or with this process.

    Raises ServerFailed."""
    port = _free_port()
    command = [_found(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.resolve())]
    command += ["--served-model-name", "m", "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--max-model-len", "16384"]
    command += ["--uvicorn-log-level", "warning", *arguments]
    say(f"starting: {' '.join(command)}")
    process = _start(command, _environment(vllm_path), log)
    try:
        url = f"http://127.0.0.1:{port}"
        started = time.monotonic()
        await _wait_until_healthy(url, process, log, limit)
        say(f"answers after {time.monotonic() - started:.0f} s")
        yield url
    finally:
        await asyncio.shield(asyncio.to_thread(_stop, process))


@asynccontextmanager
async def serve_all(
    servers: Sequence[AbstractAsyncContextManager[str]],
) -> AsyncIterator[list[str | ServerFailed]]:
    """Starts servers at the same time, and stops them at the same time. Yields the address of each, or why it failed
    to start."""
    is_over = asyncio.Event()

    async def hold(server: AbstractAsyncContextManager[str], started: "asyncio.Future[str | ServerFailed]") -> None:
        try:
            async with server as url:
                started.set_result(url)
                await is_over.wait()
        except ServerFailed as error:
            started.set_result(error)

    async with asyncio.TaskGroup() as group:
        starting = [asyncio.get_running_loop().create_future() for _ in servers]
        for server, started in zip(servers, starting, strict=True):
            group.create_task(hold(server, started))
        try:
            yield [await started for started in starting]
        finally:
            is_over.set()


def _found(python: str) -> str:
    """Where it is, for a process in another folder. A link stays one: virtual environments are found by it."""
    found = shutil.which(python)
    if found is None:
        raise ServerFailed(f"--python {python}: there is no such program.")
    return str(Path(found).absolute())


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _environment(vllm_path: str | None) -> Mapping[str, str]:
    if not vllm_path:
        return os.environ | _ENVIRONMENT
    folders = (str(Path(each).resolve()) for each in vllm_path.split(os.pathsep))
    return os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(folders)}


def _start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """As a group of its own, under a guard which ends the group when our end of its pipe closes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(Path(guard.__file__).resolve()), *command],
            env=environment,
            cwd=log.parent,  # not the repository: its folders must not be importable from there
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


async def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path, limit: float) -> None:
    deadline, tell_at = time.monotonic() + limit, time.monotonic() + _TOLD_EVERY
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerFailed(f"vLLM ended before it answered. {end_of(log, 60)}")
            if await _is_healthy(session, url):
                return
            if time.monotonic() >= tell_at:
                tell_at += _TOLD_EVERY
                say(f"  waiting: {end_of(log, 1)[-160:]}")
            await asyncio.sleep(_EVERY)
    raise ServerFailed(f"vLLM did not answer in {limit:.0f} s. {end_of(log, 60)}")


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Blocks until the group is gone and the GPU's memory is free, each for a bounded time."""
    assert process.stdin is not None
    started = time.monotonic()
    process.stdin.close()
    try:
        process.wait(_STOPS_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait(5)
    until = time.monotonic() + _FREED_WITHIN
    while (gpu_memory_used_mib() or 0) > _FREE_MIB and time.monotonic() < until:
        time.sleep(_EVERY)
    say(f"stopped after {time.monotonic() - started:.0f} s")


def end_of(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
