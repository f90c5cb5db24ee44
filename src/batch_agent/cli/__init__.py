"""The command line. `commands.py` lists what it can do; each command is a file of its name."""

from .app import main

__all__ = ["main"]
