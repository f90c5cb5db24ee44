"""Where the programs of a run work: each agent has a copy of the user's folder, with a place beside it for what is the
agent's but not part of its work."""

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
from .snapshot import Snapshot
from .tree import erase
from .workspaces import Workspaces, folder_name

T = TypeVar("T")

_log = logging.getLogger("batch_agent")

_ODD = re.compile("[^A-Za-z0-9]")
# What the model reads in place of paths that only one agent, or only this run, has: prompts begin alike then.
_PROJECT, _BESIDE, _HOUSE = "/batch-agent/project", "/batch-agent/beside", "/batch-agent/house"


def check_workdir(workdir: str | Path | None) -> None:
    """Raises SpecError."""
    if workdir is not None and not isinstance(workdir, str | os.PathLike):
        raise SpecError(f"workdir must be a folder, or None for an empty one; got {workdir!r}.")
    if workdir is not None and not as_path(workdir).is_dir():
        raise SpecError(f"workdir={str(workdir)!r} is no folder. Give one that is there, or None for an empty one.")
    if shutil.which("git") is None:
        raise SpecError("git is not installed here: agents work in copies that it makes. Install git.")


@dataclass(frozen=True, slots=True)
class WorkspaceRoot:
    """The places of a run."""

    house: RuntimeContext
    original: Snapshot
    root: Path
    """Each place is a folder in here."""
    keep: bool

    @classmethod
    async def open(cls, house: RuntimeContext, workdir: str | Path | None, keep: bool) -> Self:
        """Takes the snapshot that all copies are of. Raises SpecError."""
        store = house.folder / "original"
        store.mkdir()
        original = await Snapshot.take(None if workdir is None else as_path(workdir), store)
        root = _lasting_folder() if keep else house.folder / "agents"
        if keep:
            house.notify(f"the agents' folders stay in {root}")
        return cls(house, original, root, keep)

    @property
    def environment(self) -> Mapping[str, str]:
        """For programs that work in here: git looks for a repository nowhere above, should an agent's own be gone."""
        return {"GIT_CEILING_DIRECTORIES": str(self.root)}

    async def place(self, agent: str) -> "Workspace":
        """Raises ProgramFailed."""
        beside = self.root / folder_name(agent)
        copies = Workspaces(self.original, beside)
        copy = await copies.make(agent)
        hides = {str(copy.path): _PROJECT, str(beside): _BESIDE, str(self.house.folder): _HOUSE}
        # Claude Code and Qwen Code have a folder in your home for each that they work in, with such a name.
        hides[_ODD.sub("-", str(copy.path))] = _ODD.sub("-", _PROJECT)
        return Workspace(copies, copy, self.house.model_access.endpoint(agent, hides), self.keep)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Of one agent."""

    copies: Workspaces
    copy: WorkingCopy
    address: ModelEndpoint
    keep: bool

    @property
    def folder(self) -> Path:
        """Its copy, where it works."""
        return self.copy.path

    @property
    def beside(self) -> Path:
        """Nobody else's, outside of the copy."""
        return self.copy.path.parent

    async def changes(self) -> Changes:
        """Raises ProgramFailed."""
        return await self.copies.changes(self.copy)

    async def furnish(self, work: Callable[[], T]) -> T:
        """Runs what makes files beside the copy. Raises ProgramFailed, after leaving."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            await self.leave()
            raise ProgramFailed(f"{str(self.beside)!r} cannot be written: {error.strerror}.") from error
        except asyncio.CancelledError:
            await self.leave()
            raise

    def from_here(self, text: str) -> str:
        """Paths in the copy as they are from there on: it will be gone, and what it holds is the user's folder."""
        if self.keep:
            return text
        return text.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), ".")

    async def leave(self) -> None:
        """Never raises. What cannot go yet goes with the house."""
        if not self.keep:
            await asyncio.to_thread(erase, os.fsencode(self.beside))
            return
        try:
            await self.copies.keep(self.copy)
        except ProgramFailed as failed:
            _log.warning("%s", failed)
        await asyncio.to_thread(_erase_beside, self.folder)


def as_path(workdir: str | Path) -> Path:
    return Path(workdir).expanduser().resolve()


def _lasting_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="batch-agent-copies-")).resolve()


def _erase_beside(folder: Path) -> None:
    with suppress(OSError):
        for each in folder.parent.iterdir():
            if each != folder:
                erase(os.fsencode(each))
