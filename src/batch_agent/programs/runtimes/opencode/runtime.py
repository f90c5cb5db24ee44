"""OpenCode (https://opencode.ai) as the program that does the work of agents."""

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
from .cli import check_config, check_version, find_opencode
from .client import opencode_server
from .config import NOBODY, OpenCodeSettings, config_text, write_config
from .home import make_home
from .run_mode import RunSessions
from .serve_mode import serve_sessions

_MODES = ("serve", "process")


@dataclass(frozen=True, slots=True)
class OpenCodeRuntime:
    """Agents are sessions of OpenCode, each in a copy of `workdir`. Nothing of the user's own OpenCode gets into a run:
    no configuration, no key, no plugin. What the project says (AGENTS.md, opencode.json) counts."""

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        """Raises SpecError for arguments of batch-agent 0.2 that have another name, or none, by now."""
        for name in named:
            if name in FORMER["runtime option"]:
                raise SpecError(
                    f"OpenCodeRuntime has no argument {name!r}.{explain_unknown_name('runtime option', name, ())}"
                )
        return object.__new__(cls)

    backend: Any = None
    """In place of the run's own."""
    model: str | None = None
    """In place of the run's own."""
    _: KW_ONLY
    workdir: str | Path | None = None
    """What agents work on: each gets a copy. None: an empty folder."""
    mode: Literal["serve", "process"] = "serve"
    """One `opencode serve` for all agents; or an `opencode run` for each, which takes 0.5 GB and seconds of CPU."""
    tools: Sequence[str] | None = None
    """Those of OpenCode's tools that agents may use, such as ("read", "edit", "bash"). None: all."""
    prompt: str | None = None
    """In place of OpenCode's own system prompt."""
    config: Mapping[str, Any] | None = None
    """Merged over what we tell OpenCode, as opencode.json has it."""
    gateway: bool = True
    """Whether requests go through us, for slots, budget, retries, and prompts that begin alike."""
    keep: bool = False
    """Whether the copies stay when agents are done."""
    command: str = "opencode"
    """The program: a name to look for in PATH, or a path."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Added to the environment, which is the user's without secrets: {"GH_TOKEN": os.environ["GH_TOKEN"]}."""

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
            raise SpecError(f"prompt must be a text; got {self.prompt!r}.")
        if not all(isinstance(word, str) for pair in (self.env or {}).items() for word in pair):
            raise SpecError("env must be a mapping of texts.")
        self._wishes.check()
        find_opencode(self.command)
        check_workdir(self.workdir)

    def open(self, house: RuntimeContext) -> AbstractAsyncContextManager[SessionFactory]:
        return self._open(house)

    @asynccontextmanager
    async def _open(self, house: RuntimeContext) -> AsyncIterator[SessionFactory]:
        program = find_opencode(self.command)
        folder = house.folder / "opencode"
        home = make_home(folder, {})
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                group.create_task(check_version(program, home.environment("{}"), home.at))
                opening = group.create_task(WorkspaceRoot.open(house, self.workdir, self.keep))
        workshop, prompt = opening.result(), self._prompt_file(folder)
        environment = self._environment(workshop, prompt, folder)
        write_config(home.probe, NOBODY)
        if self.mode == "process":
            await check_config(program, environment, home.probe)
            yield RunSessions(program, workshop, partial(self._environment, workshop, prompt))
        else:
            async with serve_sessions(
                workshop, partial(opencode_server, program, environment, home.at), home.probe
            ) as crew:
                yield crew

    @property
    def _wishes(self) -> OpenCodeSettings:
        return OpenCodeSettings(self.tools, self.config)

    def _prompt_file(self, folder: Path) -> Path | None:
        if self.prompt is None:
            return None
        file = folder / "prompt"
        file.write_text(self.prompt)
        return file

    def _environment(self, workshop: WorkspaceRoot, prompt: Path | None, folder: Path) -> dict[str, str]:
        home = make_home(folder, {**workshop.environment, **(self.env or {})})
        window = workshop.house.context_tokens
        return home.environment(config_text(self._wishes, workshop.root, home.shell, prompt, window))
