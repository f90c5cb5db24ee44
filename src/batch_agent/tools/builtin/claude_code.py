"""Built-in tool that runs the Claude Code command line, one process per call."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from ...supervisor import ExitResult, ProgramCommand, ProgramError, ProgramLimits, TooMuchOutput, run_program
from ...supervisor.environment_secrets import without_secrets
from ..tool import Tool, limited_per_process, make_tool

_MAX_BYTES = 4_000_000
_MAX_ERROR_CHARS = 2_000
_OWN_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
_CLOUD_PREFIXES = {"CLAUDE_CODE_USE_BEDROCK": ("AWS_",), "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "VERTEX_", "CLOUD_ML_")}
"""Prefixes of the variables that Claude Code needs for a cloud provider, by the variable that selects the provider."""


class ClaudeCodeError(Exception):
    """The command is missing or failed."""


def claude_code_tool(
    command: str = "claude",
    *,
    cwd: str | Path | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    max_concurrent: int = 4,
) -> Tool:
    """A tool `claude_code(task)` that runs `claude -p --output-format json` in `cwd` (None: the working directory at
    the time of the call). `args`: further options, such as ("--allowedTools", "Read,Edit"), which also set its
    permissions. It gets the user's environment without secrets other than its own keys; `env` adds to that. All
    processes that it started are killed when the call ends, is cancelled or exceeds `timeout`."""

    async def claude_code(task: str) -> str:
        """Give a task to Claude Code, a coding agent that reads and changes files and runs commands in a project."""
        argv = [_installed(command), "-p", "--output-format", "json", *args]
        return _answer(await _run(ProgramCommand(argv, {**_environment(os.environ), **(env or {})}, cwd, task)))

    return limited_per_process(make_tool(claude_code, effect="write", timeout=timeout, max_concurrent=max_concurrent))


def _installed(command: str) -> str:
    program = shutil.which(command)
    if program is None:
        install = "npm install -g @anthropic-ai/claude-code"
        raise ClaudeCodeError(f"{command!r} is not installed here. The user can install it with {install}")
    return os.path.abspath(program)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment without secrets other than the keys of Claude Code itself."""
    beginnings = _OWN_PREFIXES + sum((names for switch, names in _CLOUD_PREFIXES.items() if environ.get(switch)), ())
    own = {name: value for name, value in environ.items() if name.startswith(beginnings)}
    return {**without_secrets(environ), **own}


async def _run(command: ProgramCommand) -> ExitResult:
    """Passes the task by stdin, where it can be neither too long nor mistaken for an option."""
    try:
        return await run_program(command, ProgramLimits(max_bytes=_MAX_BYTES))
    except TooMuchOutput:
        raise ClaudeCodeError(f"it wrote more than {_MAX_BYTES} bytes and was stopped") from None
    except ProgramError as error:
        raise ClaudeCodeError(str(error)) from error


def _answer(ended: ExitResult) -> str:
    try:
        answer = orjson.loads(ended.out)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ClaudeCodeError(f"it ended with exit status {ended.code} and without a JSON result: {_shown(ended)}")
    result = answer.get("result")
    if ended.code != 0 or answer.get("is_error") or not isinstance(result, str):
        raise ClaudeCodeError(f"it gave up ({answer.get('subtype', 'error')}): {result or _shown(ended)}")
    return result


def _shown(ended: ExitResult) -> str:
    text = ended.err.strip() or ended.out.decode(errors="replace").strip()
    return text[:_MAX_ERROR_CHARS] or "it wrote nothing"
