"""Codex CLI (https://github.com/openai/codex) as an agent runtime."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Any

from .... import aio
from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.json import loads
from ....core.program_runtime import ProgramFailed, ProgramResult, RuntimeContext, SessionFactory
from ....supervisor import ProgramCommand, ProgramError, ProgramLimits, ProgramLost, start_program
from ...workspace.workspace import Workspace, WorkspaceRoot, as_path, check_workdir
from ..environment import last_output, user_environment
from ..installed_program import InstalledProgram
from .codex_config import PLACEHOLDER_ENDPOINT, CodexSettings, write_home

CODEX = InstalledProgram("Codex", "npm install -g @openai/codex", (0, 169, 0))
_LIMITS = ProgramLimits(max_bytes=256_000_000, max_line_bytes=32_000_000)


@dataclass(frozen=True, slots=True)
class CodexSessions:
    """Session factory. Sessions share nothing."""

    program: str
    settings: CodexSettings
    environment: Mapping[str, str] = field(repr=False)
    workspaces: WorkspaceRoot

    async def open_session(self, agent: str) -> "CodexSession":
        workspace = await self.workspaces.create(agent)
        own = await workspace.write_files(
            lambda: write_home(workspace.private_dir / "codex", self.settings, workspace.address)
        )
        environment = {**self.environment, **own, "PWD": str(workspace.folder)}
        return CodexSession(self.program, workspace, environment)


@dataclass(slots=True)
class CodexSession:
    """One agent's workspace and the id of its Codex session. Transcript, calls and usage are taken from its
    requests."""

    program: str
    workspace: Workspace
    environment: Mapping[str, str] = field(repr=False)
    _thread: str | None = None

    async def prompt(self, text: str) -> ProgramResult:
        answer = await self._run(text)
        return ProgramResult(self.workspace.relativize(answer), await self.workspace.changes())

    async def aclose(self) -> None:
        await self.workspace.remove()

    async def _run(self, text: str) -> str:
        resumed = [] if self._thread is None else ["resume", self._thread]
        arguments = [self.program, "exec", *resumed, "--json", "--skip-git-repo-check", "-"]
        command = ProgramCommand(arguments, self.environment, self.workspace.folder, text)
        answer, failure = "", ""
        try:
            async with start_program(command, _LIMITS) as program:
                async for line in program.lines():
                    match _event(line):
                        case {"type": "thread.started", "thread_id": str(thread)}:
                            self._thread = thread
                        case {"type": "item.completed", "item": {"type": "agent_message", "text": str(said)}}:
                            answer = said
                        case {"type": "turn.failed", "error": {"message": str(why)}}:
                            failure = why
                ended = await program.wait()
        except ProgramError as error:
            raise ProgramFailed(str(error), retryable=isinstance(error, ProgramLost)) from error
        if failure or ended.code != 0:
            why = last_output(failure or ended.err)
            raise ProgramFailed(f"`codex exec` failed, exit status {ended.code}: {why}", retryable=ended.code < 0)
        return answer


def _event(line: bytes) -> Any:
    """An event of `codex exec --json`; None for other lines."""
    try:
        return loads(line)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class CodexRuntime:
    """Runs agents as sessions of Codex CLI, each in a copy of `workdir`. The user's own Codex configuration, login and
    sessions are not used; the project's AGENTS.md is."""

    backend: Any = None
    """Overrides the run's backend."""
    model: str | None = None
    """Overrides the run's model."""
    _: KW_ONLY
    workdir: str | Path | None = None
    """Directory for the agents to work on; each gets a copy. None: an empty directory."""
    prompt: str | None = None
    """Replaces Codex's base instructions."""
    config: Mapping[str, Any] | None = None
    """Merged over the generated configuration, in the format of Codex's config.toml."""
    gateway: bool = True
    """Whether requests go through the run, for slots, budget, retries and shared prompt prefixes."""
    keep: bool = False
    """Whether to keep the copies after agents have finished."""
    command: str = "codex"
    """The program to run: a name in PATH, or a path."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""

    @property
    def name(self) -> str:
        return "Codex"

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "runtime": "codex",
            "workdir": None if self.workdir is None else str(as_path(self.workdir)),
            "prompt": self.prompt,
            "config": self.config,
            **({"env": sorted(self.env)} if self.env else {}),  # the values may be keys
        }

    def check(self) -> None:
        if not all(isinstance(word, str) for pair in (self.env or {}).items() for word in pair):
            raise SpecError("env must be a mapping of strings to strings.")
        self._settings(None).check()
        CODEX.find(self.command)
        check_workdir(self.workdir)

    def open(self, context: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        return self._open(context)

    @asynccontextmanager
    async def _open(self, context: RuntimeContext) -> AsyncIterator[SessionFactory]:
        program, settings = CODEX.find(self.command), self._settings(context.context_tokens)
        environment = {**user_environment(os.environ), **(self.env or {})}
        probe = context.folder / "codex"
        probed = {**environment, **write_home(probe, settings, PLACEHOLDER_ENDPOINT)}
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                group.create_task(_check(program, probed, probe))
                opening = group.create_task(WorkspaceRoot.open(context, self.workdir, self.keep))
        workspaces = opening.result()
        yield CodexSessions(program, settings, {**environment, **workspaces.environment}, workspaces)

    def _settings(self, context_tokens: int | None) -> CodexSettings:
        return CodexSettings(self.config or {}, self.prompt, context_tokens)


async def _check(program: str, environment: Mapping[str, str], cwd: Path) -> None:
    """Raises SpecError."""
    await CODEX.check_version(program, environment, cwd)
    await CODEX.check_config([program, "features", "list"], environment, cwd)
