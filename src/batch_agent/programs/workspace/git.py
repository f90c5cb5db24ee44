"""Git, isolated from the configuration of the user, the caller or an agent."""

import asyncio
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from ... import aio
from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ProgramFailed

_MIN_VERSION = (2, 32)
"""The first version with a setting to ignore the user's configuration."""
MAX_OUTPUT_BYTES = 256 * 2**20
_MAX_ERROR_BYTES = 4_000
_NO_ENV: Mapping[str, str] = MappingProxyType({})
_CHUNK = 2**20
_SETTINGS = {
    "core.fsmonitor": "",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsync": "none",
    "core.compression": "0",
    "core.bigFileThreshold": "32m",
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
    "fastimport.unpackLimit": "0",
}

Argument = str | bytes | Path


@dataclass(frozen=True, slots=True)
class GitOutput:
    """Exit status and output of git."""

    code: int
    out: bytes
    err: str
    is_cut: bool = False
    """Whether the output exceeded the limit."""


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git without hooks, filters or file-system monitors; it therefore trusts directories of any owner."""

    program: str
    config: Path
    """Configuration file that replaces the user's."""

    async def run(
        self,
        command: str,
        *arguments: Argument,
        cwd: Path | bytes,
        options: Sequence[Argument] = (),
        stdin: Iterable[bytes] | None = None,
        env: Mapping[str, str] = _NO_ENV,
        codes: tuple[int, ...] = (0,),
        max_bytes: int = MAX_OUTPUT_BYTES,
    ) -> GitOutput:
        """`options`: options that precede the command. `stdin`: iterated in a thread. Git is killed after `max_bytes`
        of output. Raises ProgramFailed for an exit status not in `codes`."""
        environment = {**self._environment(), **env}
        output = await _run([self.program, *options, command, *arguments], cwd, environment, stdin, max_bytes)
        if output.code not in codes and not output.is_cut:
            raise ProgramFailed(f"git {command} failed: {output.err or f'exit status {output.code}'}")
        return output

    async def as_user(self, *arguments: Argument, cwd: Path | bytes) -> GitOutput:
        """Runs git with the user's own configuration, for reading only."""
        return await _run([self.program, *arguments], cwd, _without_git(os.environ), None, MAX_OUTPUT_BYTES)

    def _environment(self) -> dict[str, str]:
        named = enumerate(_SETTINGS.items())
        settings = {f"GIT_CONFIG_{part}_{n}": pair[i] for n, pair in named for i, part in enumerate(("KEY", "VALUE"))}
        return {
            **_without_git(os.environ),
            **settings,
            "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
            "GIT_CONFIG_GLOBAL": str(self.config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }


async def find_git(folder: Path) -> Git:
    """`folder`: directory for git's configuration file. Raises SpecError if git is missing or too old."""
    program = shutil.which("git")
    if program is None:
        raise SpecError("git is not installed: agents work in copies made by git. Install git.")
    git = Git(program, folder / "gitconfig")
    output = await git.as_user("--version", cwd=folder)
    found = re.match(rb"git version (\d+)\.(\d+)", output.out)
    if output.code != 0 or found is None:
        raise SpecError(f"{program!r} does not work: {output.err or output.out!r}. Repair or install git.")
    if (int(found[1]), int(found[2])) < _MIN_VERSION:
        version, least = output.out.decode(errors="replace").strip(), ".".join(map(str, _MIN_VERSION))
        raise SpecError(f"{program!r} is too old: {version}. Install git {least} or newer.")
    git.config.write_text("[safe]\n\tdirectory = *\n")
    return git


def _without_git(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


async def _run(
    command: list[Argument],
    cwd: Path | bytes,
    environment: Mapping[str, str],
    stdin: Iterable[bytes] | None,
    max_bytes: int,
) -> GitOutput:
    """Runs git in a session of its own, so that Ctrl-C reaches only this process, which then kills git."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await _communicate(process, iter(() if stdin is None else stdin), max_bytes)
        return GitOutput(
            await process.wait(), out[:max_bytes], err.decode(errors="replace").strip(), len(out) > max_bytes
        )
    except BaseExceptionGroup as failures:
        raise aio.unwrap_group(failures) from None
    finally:
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.communicate()  # drain the pipes, or they stay open


async def _communicate(
    process: asyncio.subprocess.Process, stdin: Iterator[bytes], max_bytes: int
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        out = group.create_task(_read_head(process.stdout, max_bytes, process))
        err = group.create_task(_read_head(process.stderr, _MAX_ERROR_BYTES, None))
        if process.stdin is not None:
            await _feed(process.stdin, stdin)
    return out.result(), err.result()


async def _feed(pipe: asyncio.StreamWriter, stdin: Iterator[bytes]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # git reports on stderr why it stopped reading
        while batch := await asyncio.to_thread(_batch, stdin):
            pipe.write(batch)
            await pipe.drain()
    pipe.close()


def _batch(pieces: Iterator[bytes]) -> bytes:
    """Joins small pieces, because each write has a fixed cost."""
    batch = bytearray()
    for piece in pieces:
        batch += piece
        if len(batch) >= _CHUNK:
            break
    return bytes(batch)


async def _read_head(reader: asyncio.StreamReader, max_bytes: int, process: asyncio.subprocess.Process | None) -> bytes:
    """Reads at most `max_bytes` + 1 bytes. A `process` that writes more is killed."""
    kept = bytearray()
    while chunk := await reader.read(_CHUNK):
        kept += chunk[: max_bytes + 1 - len(kept)]
        if len(kept) > max_bytes and process is not None and process.returncode is None:
            process.kill()
    return bytes(kept)
