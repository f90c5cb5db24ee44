"""Workspaces of a run's programs: each agent has a copy of the user's directory, and next to it a private directory
for files that are the agent's but not part of its work."""

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ModelEndpoint, ProgramFailed, RuntimeContext
from ...core.results import Changes
from .changes import WorkingCopy
from .file_list import missing_workdir
from .snapshot import Snapshot
from .tree import erase
from .workspaces import Workspaces, folder_name

T = TypeVar("T")

_log = logging.getLogger("batch_agent")

_NOT_ALPHANUMERIC = re.compile("[^A-Za-z0-9]")
# What the model reads instead of paths of one agent or one run, so that all prompts share a prefix.
_PROJECT_MASK, _PRIVATE_DIR_MASK, _RUN_DIR_MASK = "/batch-agent/project", "/batch-agent/beside", "/batch-agent/house"


def check_workdir(workdir: str | Path | None) -> None:
    """Raises SpecError."""
    if workdir is not None and not isinstance(workdir, str | os.PathLike):
        raise SpecError(f"workdir must be a directory, or None for an empty one; got {workdir!r}.")
    if workdir is not None and not as_path(workdir).is_dir():
        raise missing_workdir(workdir)
    if shutil.which("git") is None:
        raise SpecError("git is not installed: agents work in copies made by git. Install git.")


@dataclass(frozen=True, slots=True)
class WorkspaceRoot:
    """The workspaces of a run, all copies of one snapshot."""

    context: RuntimeContext
    snapshot: Snapshot
    root: Path
    """Contains one directory per agent."""
    keep: bool

    @classmethod
    async def open(cls, context: RuntimeContext, workdir: str | Path | None, keep: bool) -> Self:
        """Takes the snapshot. Raises SpecError."""
        store = context.folder / "original"
        store.mkdir()
        snapshot = await Snapshot.take(None if workdir is None else as_path(workdir), store)
        root = _kept_root() if keep else context.folder / "agents"
        if keep:
            context.notify(f"the agents' workspaces are kept in {root}")
        return cls(context, snapshot, root, keep)

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs in a workspace: if an agent removes its repository, git does not look for one further up."""
        return {"GIT_CEILING_DIRECTORIES": str(self.root)}

    async def create(self, agent: str) -> "Workspace":
        """Raises ProgramFailed."""
        private_dir = self.root / folder_name(agent)
        workspaces = Workspaces(self.snapshot, private_dir)
        copy = await workspaces.make(agent)
        hides = {
            str(copy.path): _PROJECT_MASK,
            str(private_dir): _PRIVATE_DIR_MASK,
            str(self.context.folder): _RUN_DIR_MASK,
        }
        # Claude Code and Qwen Code keep a directory per project in the home directory, named like this.
        hides[_NOT_ALPHANUMERIC.sub("-", str(copy.path))] = _NOT_ALPHANUMERIC.sub("-", _PROJECT_MASK)
        return Workspace(workspaces, copy, self.context.model_access.endpoint(agent, hides), self.keep)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace of one agent."""

    workspaces: Workspaces
    copy: WorkingCopy
    address: ModelEndpoint
    keep: bool

    @property
    def folder(self) -> Path:
        """The working copy."""
        return self.copy.path

    @property
    def private_dir(self) -> Path:
        """The agent's own directory, outside the working copy."""
        return self.copy.path.parent

    async def changes(self) -> Changes:
        """Raises ProgramFailed."""
        return await self.workspaces.changes(self.copy)

    async def write_files(self, work: Callable[[], T]) -> T:
        """Runs `work`, which writes files next to the working copy, in a thread. If it fails or is cancelled, the
        workspace is removed. Raises ProgramFailed."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            await self.remove()
            raise ProgramFailed(f"{str(self.private_dir)!r} cannot be written: {error.strerror}.") from error
        except asyncio.CancelledError:
            await self.remove()
            raise

    def relativize(self, text: str) -> str:
        """Makes paths in the working copy relative: the copy will be removed, and its contents belong in the user's
        directory."""
        if self.keep:
            return text
        return text.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), ".")

    async def remove(self) -> None:
        """Never raises. Files that cannot be removed now are removed with the run's directory."""
        if not self.keep:
            await asyncio.to_thread(erase, os.fsencode(self.private_dir))
            return
        try:
            await self.workspaces.keep(self.copy)
        except ProgramFailed as failed:
            _log.warning("%s", failed)
        await asyncio.to_thread(_erase_private_files, self.folder)


def as_path(workdir: str | Path) -> Path:
    return Path(workdir).expanduser().resolve()


def _kept_root() -> Path:
    return Path(tempfile.mkdtemp(prefix="batch-agent-copies-")).resolve()


def _erase_private_files(folder: Path) -> None:
    with suppress(OSError):
        for each in folder.parent.iterdir():
            if each != folder:
                erase(os.fsencode(each))
