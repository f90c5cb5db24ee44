"""Programs of others, run so that nothing of them outlives its use.

Each runs under a warden, a small process of its own (warden.py): whether the program ends, is stopped, or this process
is killed outright, the warden kills whatever the program started and is still there. On Linux nothing escapes it, not
even a process that has left the session. Elsewhere (macOS) it reaches only those that stayed in the program's process
group. Windows is not supported.
"""

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
