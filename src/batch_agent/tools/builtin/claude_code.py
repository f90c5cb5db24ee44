"""Giving a task to the Claude Code command line, a process of its own for each call."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from ...supervisor import ExitResult, ProgramCommand, ProgramError, ProgramLimits, TooMuchOutput, run_program
from ...supervisor.environment_secrets import without_secrets
from ..tool import Tool, make_tool

_MOST_BYTES = 4_000_000
_MOST_SHOWN = 2_000
_ITS_OWN = ("ANTHROPIC_", "CLAUDE_")
_ELSEWHERE = {"CLAUDE_CODE_USE_BEDROCK": ("AWS_",), "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "VERTEX_", "CLOUD_ML_")}
"""What it needs where it asks its models elsewhere, by the variable that says so."""


class ClaudeCodeError(Exception):
    """The command is missing or did not do what it was asked to; the message says which."""


def claude_code_tool(
    command: str = "claude",
    *,
    cwd: str | Path | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    max_concurrent: int = 4,
) -> Tool:
    """A `claude_code(task)` that runs `claude -p --output-format json` in `cwd` (None: the working directory at the
    time of the call). `args` are more of its options, such as ("--allowedTools", "Read,Edit"); what it may do is its
    own affair. It gets the user's environment without secrets, but for its own keys; `env` adds to that. Whatever it
    started is killed when the call ends, is cancelled or takes longer than `timeout`."""

    async def claude_code(task: str) -> str:
        """Give a task to Claude Code, a coding agent that reads and changes files and runs commands in a project."""
        argv = [_installed(command), "-p", "--output-format", "json", *args]
        return _answer(await _run(ProgramCommand(argv, {**_environment(os.environ), **(env or {})}, cwd, task)))

    return make_tool(claude_code, effect="write", timeout=timeout, max_concurrent=max_concurrent)


def _installed(command: str) -> str:
    program = shutil.which(command)
    if program is None:
        install = "npm install -g @anthropic-ai/claude-code"
        raise ClaudeCodeError(f"{command!r} is not installed here. The user can install it with {install}")
    return os.path.abspath(program)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without secrets, but for those that Claude Code itself pays with."""
    beginnings = _ITS_OWN + sum((names for switch, names in _ELSEWHERE.items() if environ.get(switch)), ())
    own = {name: value for name, value in environ.items() if name.startswith(beginnings)}
    return {**without_secrets(environ), **own}


async def _run(command: ProgramCommand) -> ExitResult:
    """The task goes in by stdin, where it can be neither too long nor taken for an option."""
    try:
        return await run_program(command, ProgramLimits(max_bytes=_MOST_BYTES))
    except TooMuchOutput:
        raise ClaudeCodeError(f"it wrote more than {_MOST_BYTES} bytes and was stopped") from None
    except ProgramError as error:
        raise ClaudeCodeError(str(error)) from error


def _answer(ended: ExitResult) -> str:
    try:
        answer = orjson.loads(ended.out)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ClaudeCodeError(f"it ended with exit status {ended.code} and without a JSON result: {_shown(ended)}")
    said = answer.get("result")
    if ended.code != 0 or answer.get("is_error") or not isinstance(said, str):
        raise ClaudeCodeError(f"it gave up ({answer.get('subtype', 'error')}): {said or _shown(ended)}")
    return said


def _shown(ended: ExitResult) -> str:
    text = ended.err.strip() or ended.out.decode(errors="replace").strip()
    return text[:_MOST_SHOWN] or "it wrote nothing"
