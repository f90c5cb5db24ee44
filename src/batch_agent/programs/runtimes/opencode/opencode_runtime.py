"""OpenCode (https://opencode.ai) as an agent runtime."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from .... import aio
from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.program_runtime import RuntimeContext, SessionFactory
from ....core.validation import FORMER, explain_unknown_name
from ...workspace.workspace import WorkspaceRoot, as_path, check_workdir
from .home import make_home
from .opencode_client import opencode_server
from .opencode_config import OPENCODE, PLACEHOLDER_ENDPOINT, OpenCodeSettings, config_text, write_config
from .run_mode import RunSessions
from .serve_mode import serve_sessions

_MODES = ("serve", "process")


@dataclass(frozen=True, slots=True)
class OpenCodeRuntime:
    """Runs agents as sessions of OpenCode, each in a copy of `workdir`. The user's own OpenCode configuration, keys and
    plugins are not used; the project's AGENTS.md and opencode.json are."""

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        """Raises SpecError for arguments of batch-agent 0.2 that were renamed or removed."""
        for name in named:
            if name in FORMER["runtime option"]:
                raise SpecError(
                    f"OpenCodeRuntime has no argument {name!r}.{explain_unknown_name('runtime option', name, ())}"
                )
        return object.__new__(cls)

    backend: Any = None
    """Overrides the run's backend."""
    model: str | None = None
    """Overrides the run's model."""
    _: KW_ONLY
    workdir: str | Path | None = None
    """Directory for the agents to work on; each gets a copy. None: an empty directory."""
    mode: Literal["serve", "process"] = "serve"
    """"serve": one `opencode serve` for all agents. "process": one `opencode run` per agent, each of which takes 0.5 GB
    and seconds of CPU."""
    tools: Sequence[str] | None = None
    """OpenCode's tools that agents may use, such as ("read", "edit", "bash"). None: all of them."""
    prompt: str | None = None
    """Replaces OpenCode's system prompt."""
    config: Mapping[str, Any] | None = None
    """Merged over the generated configuration, in the format of opencode.json."""
    gateway: bool = True
    """Whether requests go through the run, for slots, budget, retries and shared prompt prefixes."""
    keep: bool = False
    """Whether to keep the copies after agents have finished."""
    command: str = "opencode"
    """The program to run: a name in PATH, or a path."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""

    @property
    def name(self) -> str:
        return "OpenCode"

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "runtime": "opencode",
            "workdir": None if self.workdir is None else str(as_path(self.workdir)),
            "tools": None if self.tools is None else sorted(self.tools),
            "prompt": self.prompt,
            "config": self.config,
            **({"env": sorted(self.env)} if self.env else {}),  # the values may be keys
        }

    def check(self) -> None:
        if self.mode not in _MODES:
            raise SpecError(f"mode must be 'serve' or 'process'; got {self.mode!r}.")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise SpecError(f"prompt must be a string; got {self.prompt!r}.")
        if not all(isinstance(word, str) for pair in (self.env or {}).items() for word in pair):
            raise SpecError("env must be a mapping of strings to strings.")
        self._settings.check()
        OPENCODE.find(self.command)
        check_workdir(self.workdir)

    def open(self, context: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        return self._open(context)

    @asynccontextmanager
    async def _open(self, context: RuntimeContext) -> AsyncIterator[SessionFactory]:
        program = OPENCODE.find(self.command)
        folder = context.folder / "opencode"
        home = make_home(folder, {})
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                group.create_task(OPENCODE.check_version(program, home.environment("{}"), home.cwd))
                opening = group.create_task(WorkspaceRoot.open(context, self.workdir, self.keep))
        workspaces, prompt = opening.result(), self._prompt_file(folder)
        environment = self._environment(workspaces, prompt, folder)
        write_config(home.probe, PLACEHOLDER_ENDPOINT)
        if self.mode == "process":
            await OPENCODE.check_config([program, "debug", "config"], environment, home.probe)
            yield RunSessions(program, workspaces, partial(self._environment, workspaces, prompt))
        else:
            async with serve_sessions(
                workspaces, partial(opencode_server, program, environment, home.cwd), home.probe
            ) as sessions:
                yield sessions

    @property
    def _settings(self) -> OpenCodeSettings:
        return OpenCodeSettings(self.tools, self.config)

    def _prompt_file(self, folder: Path) -> Path | None:
        if self.prompt is None:
            return None
        file = folder / "prompt"
        file.write_text(self.prompt)
        return file

    def _environment(self, workspaces: WorkspaceRoot, prompt: Path | None, folder: Path) -> dict[str, str]:
        home = make_home(folder, {**workspaces.environment, **(self.env or {})})
        window = workspaces.context.context_tokens
        return home.environment(config_text(self._settings, workspaces.root, home.shell, prompt, window))
