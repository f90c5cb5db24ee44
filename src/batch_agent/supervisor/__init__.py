"""Supervision of external programs, so that no process of a program outlives its use.

Each program runs under a supervisor, a small separate process (supervisor_process.py). Whether the program ends, is
stopped, or this process is killed, the supervisor kills everything that the program started. On Linux nothing escapes
it, not even a process that has left the session. On other systems (macOS) it reaches only the program's process group.
Windows is not supported."""

from .command import (
    CannotStart,
    ExitResult,
    ProgramCommand,
    ProgramError,
    ProgramLimits,
    ProgramLost,
    Stdin,
    TooMuchOutput,
)
from .program import Program, run_program, start_program

__all__ = [
    "CannotStart",
    "ExitResult",
    "Program",
    "ProgramCommand",
    "ProgramError",
    "ProgramLimits",
    "ProgramLost",
    "Stdin",
    "TooMuchOutput",
    "run_program",
    "start_program",
]
