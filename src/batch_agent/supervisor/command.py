"""What is run, what it may do, how it ended.

One class per reaction of whoever runs a program.
"""

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
    """A program to run. A name without a slash is looked for in the PATH of `env`; other relative paths start at
    `cwd`."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    """All of its environment; {**os.environ} for ours. Not shown: there are keys in it."""
    cwd: str | Path | None = None
    """None: the working directory at the start."""
    stdin: str | Literal[Stdin.PIPE] | None = None
    """What it reads. None: nothing."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What a program may write, and how long it may take to stop."""

    most_bytes: int = 64_000_000
    """On stdout, to be read. What nobody will read is not limited: it is thrown away."""
    most_line_bytes: int = 16_000_000
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL when it is stopped; 0 for SIGKILL at once."""


@dataclass(frozen=True, slots=True)
class ExitResult:
    """How a program ended."""

    code: int
    """Its exit status, or the number of the signal that killed it, below zero."""
    out: bytes
    """What it wrote to stdout: from `run_to_end` all of it, else beginning and end of what nobody read."""
    err: str
    """The beginning and the end of what it wrote to stderr."""


class ProgramError(BatchAgentError):
    """A program could not be used; the message says which, why and what to do."""


class CannotStart(ProgramError):
    """Nothing has run: the program, its folder or its arguments are not usable as they are."""


class TooMuchOutput(ProgramError):
    """The program wrote more than it may. It is killed when its context is left."""


class ProgramLost(ProgramError):
    """How the program ended is not known. Running it again may help."""
