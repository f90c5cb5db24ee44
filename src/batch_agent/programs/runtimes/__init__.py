"""Runtimes: programs that run as agents."""

from .codex.codex_runtime import CodexRuntime
from .command_runtime import ProcessRuntime
from .opencode.opencode_runtime import OpenCodeRuntime

__all__ = ["CodexRuntime", "OpenCodeRuntime", "ProcessRuntime"]
