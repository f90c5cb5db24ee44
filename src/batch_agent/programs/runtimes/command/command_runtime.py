"""Runtime for any program that takes a task and the address of a model."""

import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Any

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.program_runtime import RuntimeContext, SessionFactory
from ...workspace.workspace import WorkspaceRoot, as_path, check_workdir
from ..environment import user_environment
from .command_session import STDOUT, CommandSessions


@dataclass(frozen=True, slots=True)
class ProcessRuntime:
    """Agents are runs of a command, each in a copy of `workdir`. If an answer does not fit, the command is run again
    in the same directory, with the conversation so far.

    In `command` and in the values of `env`, {task}, {folder}, {model}, {url}, {openai_url} and {key} are replaced by
    the agent's task, its directory, and the model's name and address. Without {task}, the task is written to stdin.
    The model's address is also set in the environment, under the usual names: OPENAI_BASE_URL, OPENAI_API_KEY,
    ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY.
    """

    command: Sequence[str]
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""
    _: KW_ONLY
    backend: Any = None
    """Overrides the run's backend."""
    model: str | None = None
    """Overrides the run's model."""
    workdir: str | Path | None = None
    """Directory that agents work on; each gets a copy. None: an empty directory."""
    answer: str = STDOUT
    """Source of the answer: "stdout", or a file relative to the agent's directory. A file outside it, such as
    "../answer.txt", is not reported as a change."""
    gateway: bool = True
    """Whether requests go through the run, for slots, budget, retries and shared prompt prefixes."""
    keep: bool = False
    """Whether the copies are kept when agents have finished."""

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
    """A program in the agent's directory cannot be checked yet."""
    if os.sep in program and not Path(program).is_absolute():
        return True
    return "{" in program or shutil.which(program, path=path) is not None
