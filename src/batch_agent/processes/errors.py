"""One class per reaction of whoever runs a program."""

from ..core.errors import BatchAgentError


class ProgramError(BatchAgentError):
    """A program could not be used; the message says which, why and what to do."""


class CannotStart(ProgramError):
    """Nothing has run: the program, its folder or its arguments are not usable as they are."""


class TooMuchOutput(ProgramError):
    """The program wrote more than it may. It is killed when its context is left."""


class ProgramLost(ProgramError):
    """How the program ended is not known. Running it again may help."""
