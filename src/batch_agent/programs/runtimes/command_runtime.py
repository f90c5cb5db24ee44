"""Runtime for any program that takes a task and the address of a model. It is started once per prompt."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ModelEndpoint, ProgramFailed, ProgramResult, RuntimeContext, SessionFactory
from ...supervisor import ExitResult, Program, ProgramCommand, ProgramError, ProgramLimits, ProgramLost, start_program
from ..workspace.workspace import Workspace, WorkspaceRoot, as_path, check_workdir
from .environment import last_output, user_environment

TASK = "{task}"
_NAMES = re.compile(r"\{(url|openai_url|key|model|task|folder)\}")
# Variables in which most programs look for the model's address.
_STANDARD_ENV = {
    "OPENAI_BASE_URL": "{openai_url}",
    "OPENAI_API_BASE": "{openai_url}",
    "OPENAI_API_KEY": "{key}",
    "OPENAI_MODEL": "{model}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{key}",
    "ANTHROPIC_MODEL": "{model}",
    "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
    # Otherwise Claude Code also connects to Anthropic, and sends the model requests that no agent needs.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


class CommandTemplate:
    """Replaces placeholders by an agent's values. Leaves other braces unchanged."""

    def __init__(self, address: ModelEndpoint, folder: Path, task: str) -> None:
        self._values = {
            "url": address.url,
            "openai_url": address.openai,
            "key": address.key,
            "model": address.model,
            "task": task,
            "folder": str(folder),
        }

    def command(self, command: Iterable[str]) -> list[str]:
        return [self._fill(part) for part in command]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment, including the standard names unless `env` sets them."""
        return {name: self._fill(value) for name, value in {**_STANDARD_ENV, **env}.items()}

    def _fill(self, text: str) -> str:
        return _NAMES.sub(lambda found: self._values[found[1]], text)


def names_task(command: Iterable[str], env: Mapping[str, str]) -> bool:
    """Whether {task} occurs. If not, the task is written to stdin."""
    return any(TASK in text for text in (*command, *env.values()))


def replay_conversation(exchanges: Iterable[tuple[str, str]], text: str) -> str:
    """The conversation so far and the new prompt, for a program without memory."""
    parts = [part for prompt, answer in exchanges for part in (prompt, f"Your answer was:\n{answer}")]
    return "\n\n".join([*parts, text])


STDOUT = "stdout"
_MAX_ANSWER_BYTES = 8_000_000
_LIMITS = ProgramLimits(max_bytes=_MAX_ANSWER_BYTES)


@dataclass(frozen=True, slots=True)
class CommandSessions:
    """Session factory. Sessions share nothing."""

    command: Sequence[str]
    env: Mapping[str, str]
    answer: str
    base_environment: Mapping[str, str] = field(repr=False)
    workspaces: WorkspaceRoot

    async def open_session(self, agent: str) -> "CommandSession":
        return CommandSession(self, await self.workspaces.create(agent))


@dataclass(slots=True)
class CommandSession:
    """One agent's workspace, and its conversation so far, which the program does not remember."""

    sessions: CommandSessions
    workspace: Workspace
    _exchanges: list[tuple[str, str]] = field(default_factory=list)

    async def prompt(self, text: str) -> ProgramResult:
        answer = await self._run(replay_conversation(self._exchanges, text))
        self._exchanges.append((text, answer))
        return ProgramResult(self.workspace.relativize(answer), await self.workspace.changes())

    async def aclose(self) -> None:
        await self.workspace.remove()

    async def _run(self, task: str) -> str:
        file = None if self.sessions.answer == STDOUT else self.workspace.folder / self.sessions.answer
        if file is not None:
            with suppress(OSError):
                file.unlink()
        try:
            async with start_program(self._command(task), _LIMITS) as program:
                out = await _output(program, keep=file is None)
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        if ended.code != 0:
            raise _failed(self.sessions.command[0], ended, out)
        output = out if file is None else await asyncio.to_thread(_read, file)
        return output.decode(errors="replace").strip()

    def _command(self, task: str) -> ProgramCommand:
        sessions = self.sessions
        template = CommandTemplate(self.workspace.address, self.workspace.folder, task)
        cwd = {"PWD": str(self.workspace.folder)}  # some programs take their directory from PWD
        environment = {
            **sessions.base_environment,
            **cwd,
            **sessions.workspaces.environment,
            **template.environment(sessions.env),
        }
        stdin = None if names_task(sessions.command, sessions.env) else task
        return ProgramCommand(template.command(sessions.command), environment, self.workspace.folder, stdin)


async def _output(program: Program, *, keep: bool) -> bytes:
    if keep:
        return await program.whole_output()
    program.discard_output()
    return b""


def _failed(name: str, ended: ExitResult, out: bytes) -> ProgramFailed:
    output = ended.err if ended.err.strip() else (out or ended.out).decode(errors="replace")
    return ProgramFailed(f"{name!r} failed, exit status {ended.code}: {last_output(output)}", retryable=ended.code < 0)


def _read(file: Path) -> bytes:
    """Reads a file without following links, which an agent could point anywhere. Raises ProgramFailed."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ProgramFailed(f"The program did not write its answer to {file.name!r}.")
        with file.open("rb") as answer:
            return answer.read(_MAX_ANSWER_BYTES)
    except OSError as error:
        raise ProgramFailed(f"The answer in {file.name!r} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class ProcessRuntime:
    """Runs agents as a command, each in a copy of `workdir`. If an answer does not fit the schema, the command runs
    again in the same directory, with the conversation so far.

    In `command` and in the values of `env`, {task}, {folder}, {model}, {url}, {openai_url} and {key} are replaced by
    the agent's task and directory, the model's name, its address (two forms) and its key. Without {task}, the task is
    written to stdin. The model's address is also set in the environment, under the usual names: OPENAI_BASE_URL,
    OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY."""

    command: Sequence[str]
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""
    _: KW_ONLY
    backend: Any = None
    """Overrides the run's backend."""
    model: str | None = None
    """Overrides the run's model."""
    workdir: str | Path | None = None
    """Directory for the agents to work on; each gets a copy. None: an empty directory."""
    answer: str = STDOUT
    """Source of the answer: "stdout", or a file relative to the agent's directory. A file outside of it, such as
    "../answer.txt", is not reported as a change."""
    gateway: bool = True
    """Whether requests go through the run, for slots, budget, retries and shared prompt prefixes."""
    keep: bool = False
    """Whether to keep the copies after agents have finished."""

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "runtime": "process",
            "command": list(self.command),
            "env": sorted(self.env or ()),  # the values may be keys
            "workdir": None if self.workdir is None else str(as_path(self.workdir)),
            "answer": self.answer,
        }

    def check(self) -> None:
        command, env = self.command, self.env or {}
        if isinstance(command, str) or not command or not all(isinstance(part, str) for part in command):
            raise SpecError(
                f"command must be a list of strings, such as ['aider', '--message', '{{task}}']; got {command!r}."
            )
        if not isinstance(env, Mapping) or not all(isinstance(part, str) for pair in env.items() for part in pair):
            raise SpecError("env must be a mapping of strings to strings.")
        if not isinstance(self.answer, str) or not self.answer or Path(self.answer).is_absolute():
            raise SpecError(
                f"answer must be 'stdout' or a path relative to the agent's directory; got {self.answer!r}."
            )
        if not _is_installed(command[0], env.get("PATH", os.environ.get("PATH", os.defpath))):
            raise SpecError(f"{command[0]!r} is not installed: it was not found in PATH.")
        check_workdir(self.workdir)

    def open(self, context: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        return self._open(context)

    @asynccontextmanager
    async def _open(self, context: RuntimeContext) -> AsyncIterator[SessionFactory]:
        workspaces = await WorkspaceRoot.open(context, self.workdir, self.keep)
        yield CommandSessions(tuple(self.command), self.env or {}, self.answer, user_environment(), workspaces)


def _is_installed(program: str, path: str) -> bool:
    """Whether the program is installed. One in the agent's directory cannot be checked yet."""
    if os.sep in program and not Path(program).is_absolute():
        return True
    return "{" in program or shutil.which(program, path=path) is not None
