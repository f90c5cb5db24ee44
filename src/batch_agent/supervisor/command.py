"""Command of a program, checked and encoded for a supervisor, with the limits, exit result and errors of running it."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Literal

from ..core.errors import BatchAgentError
from ..core.fast_dataclass import dataclass
from .supervisor_process import encode


class Stdin(Enum):
    PIPE = "pipe"
    """Input is written while the program runs, with `Program.write`."""


@dataclass(frozen=True, slots=True)
class ProgramCommand:
    """A program to run. A name without a slash is looked up in the PATH of `env`; other relative paths are relative to
    `cwd`."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    """The complete environment; {**os.environ} for that of this process. Excluded from the repr, because it contains
    secrets."""
    cwd: str | Path | None = None
    """None: the working directory of this process when the program starts."""
    stdin: str | Literal[Stdin.PIPE] | None = None
    """Standard input. None: empty."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of a program's output, and its grace period."""

    max_bytes: int = 64_000_000
    """Maximum bytes of stdout that are read. Discarded output is not limited."""
    max_line_bytes: int = 16_000_000
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL when the program is stopped; 0: SIGKILL at once."""


@dataclass(frozen=True, slots=True)
class ExitResult:
    """Exit status and output of a program."""

    code: int
    """Exit status, or the negated number of the signal that killed the program."""
    out: bytes
    """All of stdout from `run_program`, otherwise the beginning and the end of what was discarded."""
    err: str
    """The beginning and the end of stderr."""


class ProgramError(BatchAgentError):
    """Raised if a program could not be used."""


class CannotStart(ProgramError):
    """Raised if the program did not start, because it, its working directory or its arguments cannot be used."""


class TooMuchOutput(ProgramError):
    """Raised if the program exceeds its output limit. It is killed when its context is left."""


class ProgramLost(ProgramError):
    """Raised if the exit status of the program is unknown. Running it again may help."""


def encode_command(command: ProgramCommand, grace: float) -> bytes:
    """Encodes a command. Raises CannotStart for a command that is known to fail."""
    if not command.argv:
        raise CannotStart("There is no program to start: the command is empty.")
    try:
        cwd = _folder(command.cwd)
        program = _program(command.argv[0], command.env, cwd)
        argv = [_encoded(argument) for argument in command.argv]
        env = [_variable(name, value) for name, value in command.env.items()]
        return encode(grace, _encoded(cwd), _encoded(program), argv, env)
    except ValueError as error:
        raise CannotStart(f"{command.argv[0]!r} cannot be started: {error}.") from error


def _folder(cwd: str | Path | None) -> str:
    try:
        folder = os.path.abspath(os.getcwd() if cwd is None else cwd)
    except FileNotFoundError:
        raise ValueError("the working directory no longer exists") from None
    if not os.path.isdir(folder):
        raise ValueError(f"its working directory {folder!r} does not exist")
    return folder


def _program(name: str, env: Mapping[str, str], cwd: str) -> str:
    if os.sep not in name:
        folders = [os.path.join(cwd, folder) for folder in env.get("PATH", os.defpath).split(os.pathsep)]
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found is None:
            raise ValueError("it is not in its PATH; install it, or give its path")
        return found
    path = os.path.join(cwd, name)
    if not os.path.isfile(path):
        raise ValueError("there is no such file")
    if not os.access(path, os.X_OK):
        raise ValueError("it is not executable; run chmod +x on it")
    return path


def _variable(name: str, value: str) -> bytes:
    if not name or "=" in name:
        raise ValueError(f"{name!r} is not a valid name of an environment variable")
    if "\0" in value:
        raise ValueError(f"there is a NUL in the value of {name!r}")  # the value may be a secret
    return _encoded(f"{name}={value}")


def _encoded(text: str) -> bytes:
    """Encodes an argument. Raises ValueError for text that cannot be one; UnicodeEncodeError is a subclass."""
    if "\0" in text:
        raise ValueError(f"there is a NUL in {text[:80]!r}")
    return os.fsencode(text)
