"""The command line: batch-agent run, demo, sim."""

from .app import main

__all__ = ["main"]
