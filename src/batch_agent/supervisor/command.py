"""Command, limits and exit result of a program, and the errors of running it."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Literal

from ..core.errors import BatchAgentError
from ..core.fast_dataclass import dataclass


class Stdin(Enum):
    PIPE = "pipe"
    """Written while the program runs, with `Program.write`."""


@dataclass(frozen=True, slots=True)
class ProgramCommand:
    """A program to run. A name without a slash is looked up in the PATH of `env`; other relative paths are relative to
    `cwd`."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    """The whole environment; {**os.environ} for that of this process. Not part of the repr, because it holds
    secrets."""
    cwd: str | Path | None = None
    """None: the working directory of this process when the program starts."""
    stdin: str | Literal[Stdin.PIPE] | None = None
    """Standard input. None: empty."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of a program's output, and its grace period."""

    max_bytes: int = 64_000_000
    """Of stdout that is read. Output that is discarded is not limited."""
    max_line_bytes: int = 16_000_000
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL when the program is stopped; 0: SIGKILL at once."""


@dataclass(frozen=True, slots=True)
class ExitResult:
    """Exit status and output of a program."""

    code: int
    """Exit status, or the negative number of the signal that killed it."""
    out: bytes
    """Stdout: all of it from `run_program`, else the beginning and the end of what was discarded."""
    err: str
    """The beginning and the end of stderr."""


class ProgramError(BatchAgentError):
    """A program could not be used."""


class CannotStart(ProgramError):
    """The program did not start: it, its working directory or its arguments cannot be used."""


class TooMuchOutput(ProgramError):
    """The program exceeded its output limit. It is killed when its context is left."""


class ProgramLost(ProgramError):
    """The exit status of the program is unknown. Running it again may help."""
