"""Giving a task to the Claude Code command line, a process of its own for each call."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ..tool import Tool, make_tool

_MOST_BYTES = 4_000_000
_MOST_SHOWN = 2_000
_CHUNK = 65_536


class ClaudeCodeError(Exception):
    """The command is missing or did not do what it was asked to; the message says which."""


def claude_code_tool(
    command: str = "claude",
    *,
    cwd: str | Path | None = None,
    args: Sequence[str] = (),
    timeout: float = 600.0,
    max_concurrent: int = 4,
) -> Tool:
    """A `claude_code(task)` that runs `claude -p --output-format json` in `cwd` (None: the working directory at the
    time of the call). `args` are more of its options, such as ("--allowedTools", "Read,Edit"); what it may do is its
    own affair. Whatever it started is killed when the call ends, is cancelled or takes longer than `timeout`."""

    async def claude_code(task: str) -> str:
        """Give a task to Claude Code, a coding agent that reads and changes files and runs commands in a project."""
        program = shutil.which(command)
        if program is None:
            install = "npm install -g @anthropic-ai/claude-code"
            raise ClaudeCodeError(f"{command!r} is not installed here. The user can install it with {install}")
        return _answer(await _run([program, "-p", "--output-format", "json", *args], task, cwd))

    return make_tool(claude_code, effect="write", timeout=timeout, max_concurrent=max_concurrent)


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a process ended, and the beginning of what it wrote."""

    code: int
    out: bytes
    err: bytes


def _answer(ended: _Ended) -> str:
    if len(ended.out) > _MOST_BYTES:
        raise ClaudeCodeError(f"it wrote more than {_MOST_BYTES} bytes and was stopped")
    try:
        answer = orjson.loads(ended.out)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ClaudeCodeError(f"it ended with exit status {ended.code} and without a JSON result: {_shown(ended)}")
    said = answer.get("result")
    if ended.code != 0 or answer.get("is_error") or not isinstance(said, str):
        raise ClaudeCodeError(f"it gave up ({answer.get('subtype', 'error')}): {said or _shown(ended)}")
    return said


def _shown(ended: _Ended) -> str:
    text = (ended.err.strip() or ended.out.strip()).decode(errors="replace")
    return text[:_MOST_SHOWN] or "it wrote nothing"


async def _run(command: Sequence[str], task: str, cwd: str | Path | None) -> _Ended:
    """The task goes in by stdin, where it can be neither too long nor taken for an option."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(task.encode(errors="replace"))
        stdin.seek(0)
        async with _pipe() as (out, out_end), _pipe() as (err, err_end):
            process = await _start(command, cwd, stdin, out_end, err_end)
            try:
                async with asyncio.TaskGroup() as group:
                    wrote = group.create_task(_beginning(out, _MOST_BYTES, lambda: _kill(process.pid)))
                    warned = group.create_task(_beginning(err, _MOST_SHOWN, lambda: None))
                    code = await process.wait()
                    _kill(process.pid)  # what it left behind would keep the pipes open
                return _Ended(code, wrote.result(), warned.result())
            finally:
                _kill(process.pid)
                await process.wait()


async def _start(
    command: Sequence[str], cwd: str | Path | None, stdin: Any, out_end: int, err_end: int
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, cwd=cwd, stdin=stdin, stdout=out_end, stderr=err_end, start_new_session=True
        )
    except OSError as error:
        raise ClaudeCodeError(f"it cannot be started: {error}") from error
    finally:
        os.close(out_end)
        os.close(err_end)


async def _beginning(reader: asyncio.StreamReader, most: int, when_more: Callable[[], None]) -> bytes:
    """What was written, until nobody can write any more; of what goes beyond `most` only one byte is kept."""
    kept = bytearray()
    while chunk := await reader.read(_CHUNK):
        room = most + 1 - len(kept)
        kept += chunk[:room]
        if len(chunk) > room:
            when_more()
    return bytes(kept)


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A reader, and the end to write to. Not asyncio's own pipes: with those, a process counts as running for as long
    as any child of it holds an end."""
    reader = asyncio.StreamReader()
    read_end, write_end = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    try:
        yield reader, write_end
    finally:
        transport.close()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


Tool.claude_code = claude_code_tool()
