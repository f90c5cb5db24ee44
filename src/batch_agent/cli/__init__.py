"""The command line. `command_table.py` lists the commands; each command is a module in `commands/`."""

from .app import main

__all__ = ["main"]
