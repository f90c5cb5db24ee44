"""Any program that takes a task and the address of a model, as the one that does the work of agents."""

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
from .session import STDOUT, CommandSessions


@dataclass(frozen=True, slots=True)
class ProcessRuntime:
    """Agents are runs of a command, each in a copy of `workdir`. It is asked again, for an answer that does not fit, by
    running it again in the same folder, with all that was said before.

    In `command` and in the values of `env`, {task}, {folder}, {model}, {url}, {openai_url} and {key} stand for what the
    agent is asked, where it works, and where it finds the model; without {task}, the task comes by stdin. The last
    three are also in the environment by their usual names: OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL,
    ANTHROPIC_API_KEY."""

    command: Sequence[str]
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""
    _: KW_ONLY
    backend: Any = None
    """In place of the run's own."""
    model: str | None = None
    """In place of the run's own."""
    workdir: str | Path | None = None
    """What agents work on: each gets a copy. None: an empty folder."""
    answer: str = STDOUT
    """Where the answer is: what the program writes to stdout, or a file, from its folder on. One beside the folder,
    such as "../answer.txt", is no change of it."""
    gateway: bool = True
    """Whether requests go through us, for slots, budget, retries, and prompts that begin alike."""
    keep: bool = False
    """Whether the copies stay when agents are done."""

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
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise SpecError(
                f"command must be a list of words, such as ['aider', '--message', '{{task}}']; got {command!r}."
            )
        if not isinstance(env, Mapping) or not all(isinstance(word, str) for pair in env.items() for word in pair):
            raise SpecError("env must be a mapping of texts.")
        if not isinstance(self.answer, str) or not self.answer or Path(self.answer).is_absolute():
            raise SpecError(f"answer must be 'stdout', or a file from the agent's folder on; got {self.answer!r}.")
        if not _is_there(command[0], env.get("PATH", os.environ.get("PATH", os.defpath))):
            raise SpecError(f"{command[0]!r} is not installed here: none of the folders in PATH has it.")
        check_workdir(self.workdir)

    def open(self, house: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        return self._open(house)

    @asynccontextmanager
    async def _open(self, house: RuntimeContext) -> AsyncIterator[SessionFactory]:
        workshop = await WorkspaceRoot.open(house, self.workdir, self.keep)
        yield CommandSessions(tuple(self.command), self.env or {}, self.answer, user_environment(), workshop)


def _is_there(program: str, path: str) -> bool:
    """One that is in the folder of an agent cannot be seen yet."""
    if os.sep in program and not Path(program).is_absolute():
        return True
    return "{" in program or shutil.which(program, path=path) is not None
