"""Runtimes: programs that run as agents."""

from .command_runtime import ProcessRuntime
from .opencode.opencode_runtime import OpenCodeRuntime

__all__ = ["OpenCodeRuntime", "ProcessRuntime"]
