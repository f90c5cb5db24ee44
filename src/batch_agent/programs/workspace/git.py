"""Running git, kept from all that the user, the caller or an agent has set up for it."""

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

_OLDEST = (2, 32)
"""The first that can be told to read no configuration of the user."""
MOST_BYTES = 256 * 2**20
_MOST_ERRORS = 4_000
_NOTHING: Mapping[str, str] = MappingProxyType({})
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
    """What git wrote."""

    code: int
    out: bytes
    err: str
    is_cut: bool = False
    """It wrote more than was wanted."""


@dataclass(frozen=True, slots=True)
class Git:
    """Runs no hook, no filter, no monitor of anybody. It trusts a folder of any owner, because of that."""

    program: str
    config: Path
    """In place of the user's own."""

    async def run(
        self,
        command: str,
        *arguments: Argument,
        cwd: Path | bytes,
        options: Sequence[Argument] = (),
        stdin: Iterable[bytes] | None = None,
        env: Mapping[str, str] = _NOTHING,
        codes: tuple[int, ...] = (0,),
        most: int = MOST_BYTES,
    ) -> GitOutput:
        """`options` go before the command. `stdin` is read in a thread. Past `most` bytes of output git is stopped.
        Raises ProgramFailed for an exit status that is none of `codes`."""
        environment = {**self._environment(), **env}
        said = await _run([self.program, *options, command, *arguments], cwd, environment, stdin, most)
        if said.code not in codes and not said.is_cut:
            raise ProgramFailed(f"git {command} failed: {said.err or f'exit status {said.code}'}")
        return said

    async def as_user(self, *arguments: Argument, cwd: Path | bytes) -> GitOutput:
        """With the user's own configuration; for nothing but asking what is in there."""
        return await _run([self.program, *arguments], cwd, _without_git(os.environ), None, MOST_BYTES)

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
    """`folder` is for its configuration. Raises SpecError if git is missing or too old."""
    program = shutil.which("git")
    if program is None:
        raise SpecError("git is not installed here: coding agents work in copies that it makes. Install git.")
    git = Git(program, folder / "gitconfig")
    said = await git.as_user("--version", cwd=folder)
    found = re.match(rb"git version (\d+)\.(\d+)", said.out)
    if said.code != 0 or found is None:
        raise SpecError(f"{program!r} does not work: {said.err or said.out!r}. Repair or install git.")
    if (int(found[1]), int(found[2])) < _OLDEST:
        version, least = said.out.decode(errors="replace").strip(), ".".join(map(str, _OLDEST))
        raise SpecError(f"{program!r} is {version}: too old. Install git {least} or newer.")
    git.config.write_text("[safe]\n\tdirectory = *\n")
    return git


def _without_git(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


async def _run(
    command: list[Argument],
    cwd: Path | bytes,
    environment: Mapping[str, str],
    stdin: Iterable[bytes] | None,
    most: int,
) -> GitOutput:
    """In a session of its own: a Ctrl-C is for us, and we stop it."""
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
        out, err = await _talk(process, iter(() if stdin is None else stdin), most)
        return GitOutput(await process.wait(), out[:most], err.decode(errors="replace").strip(), len(out) > most)
    except BaseExceptionGroup as failures:
        raise aio.unwrap_group(failures) from None
    finally:
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.communicate()  # what is left in the pipes keeps them open


async def _talk(process: asyncio.subprocess.Process, stdin: Iterator[bytes], most: int) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        out = group.create_task(_beginning(process.stdout, most, process))
        err = group.create_task(_beginning(process.stderr, _MOST_ERRORS, None))
        if process.stdin is not None:
            await _feed(process.stdin, stdin)
    return out.result(), err.result()


async def _feed(pipe: asyncio.StreamWriter, stdin: Iterator[bytes]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # why it did not read on, git says itself
        while batch := await asyncio.to_thread(_batch, stdin):
            pipe.write(batch)
            await pipe.drain()
    pipe.close()


def _batch(pieces: Iterator[bytes]) -> bytes:
    """Many small pieces cost as much as few large ones."""
    batch = bytearray()
    for piece in pieces:
        batch += piece
        if len(batch) >= _CHUNK:
            break
    return bytes(batch)


async def _beginning(reader: asyncio.StreamReader, most: int, process: asyncio.subprocess.Process | None) -> bytes:
    """At most a byte more than `most`; a `process` that writes more is killed."""
    kept = bytearray()
    while chunk := await reader.read(_CHUNK):
        kept += chunk[: most + 1 - len(kept)]
        if len(kept) > most and process is not None and process.returncode is None:
            process.kill()
    return bytes(kept)
