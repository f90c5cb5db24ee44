"""Workspaces of a run's programs. Each agent has a copy of the user's directory and, next to it, a private directory
for files that are not part of its work. All copies come from one snapshot."""

import asyncio
import hashlib
import logging
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ModelEndpoint, ProgramFailed, RuntimeContext
from ...core.results import ChangeKind, Changes, FileChange
from .changes import ChangedFiles, DiffLimits, WorkingCopy, changed_files
from .diff import TreeComparison, display_path
from .file_list import missing_workdir
from .object_store import Import
from .seed_repo import detach, install_seed_repo
from .snapshot import Snapshot
from .tree import FileEntry, erase, walk

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_MAX_NAME_LENGTH = 24
_DIFF_LIMITS = DiffLimits()


class Workspaces:
    """Copies of a snapshot. To an agent, its copy is an ordinary repository: branch `main`, one commit, no changes, no
    remote. Changes to that repository affect neither other agents nor the snapshot."""

    def __init__(self, snapshot: Snapshot, root: Path, limits: DiffLimits = _DIFF_LIMITS) -> None:
        """`root`: directory for the copies, preferably outside of any repository. It is created if it does not
        exist."""
        self._snapshot = snapshot
        self._root = Path(os.path.abspath(root))
        self._limits = limits

    async def make(self, name: str) -> WorkingCopy:
        """Makes a copy. The same name gives the same directory, and replaces its contents. Raises ProgramFailed."""
        path = self._root / folder_name(name)
        where = (f"--git-dir={path / '.git'}", f"--work-tree={path}")
        try:
            await asyncio.to_thread(self._install, path)
            await self._snapshot.store.git.run("read-tree", "-m", "-u", "HEAD", options=where, cwd=path)
            return await asyncio.to_thread(self._copy, path)
        except OSError as error:
            raise ProgramFailed(f"{str(path)!r} cannot be created: {error.strerror}.") from error

    async def changes(self, copy: WorkingCopy) -> Changes:
        """Changes since the snapshot, committed or not, without new files that git ignores. The agent should not be
        running. Raises ProgramFailed."""
        try:
            found = await changed_files(self._snapshot, copy, self._limits)
            if found.is_nothing:
                return Changes(is_cut=not found.is_whole)
            return await self._compare(copy, found)
        except OSError as error:
            raise ProgramFailed(f"{str(copy.path)!r} cannot be read: {error.strerror}.") from error

    async def keep(self, copy: WorkingCopy) -> None:
        """Makes the copy independent of the run's files, for the user. Raises ProgramFailed."""
        try:
            await asyncio.to_thread(detach, self._snapshot.store, copy.path)
        except OSError as error:
            raise ProgramFailed(f"{str(copy.path)!r} cannot be kept: {error.strerror}.") from error

    def _install(self, path: Path) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        erase(os.fsencode(path))
        install_seed_repo(self._snapshot.store, path)

    def _copy(self, path: Path) -> WorkingCopy:
        """The index is written last, so later changes are newer than it."""
        numbers = self._snapshot.numbers
        inodes = array("Q", bytes(8 * len(numbers)))
        for file, entry in walk(os.fsencode(path), limit=len(numbers)).entries.items():
            if file in numbers:
                inodes[numbers[file]] = entry.inode
        return WorkingCopy(path, inodes, os.stat(path / ".git" / "index").st_ctime_ns)

    async def _compare(self, copy: WorkingCopy, found: ChangedFiles) -> Changes:
        snapshot, root = self._snapshot, os.fsencode(copy.path)
        large = {**found.large, **await self._verify(root, found.unverified)}
        files = Import(root, found.small, make_readable=True)
        async with snapshot.store.scratch_store() as store:
            comparison = TreeComparison(snapshot, store, await store.tree(files, found.deleted))
            different = await comparison.differences(self._limits.file)
            patch, is_cut = await comparison.patch(different, self._limits.patch)
        large.update({path: "modified" if path in snapshot.numbers else "added" for path in files.unread})
        changes = [
            *(file.change for file in different),
            *(FileChange(display_path(path), large[path]) for path in large),
        ]
        changes.sort(key=lambda change: change.path)
        return Changes(tuple(changes), patch, is_cut or bool(large) or not found.is_whole)

    async def _verify(self, root: bytes, entries: Mapping[bytes, FileEntry]) -> dict[bytes, ChangeKind]:
        """Files of the snapshot that differ or cannot be read."""
        if not entries:
            return {}
        files = Import(root, entries, make_readable=True)
        async with self._snapshot.store.scratch_store() as store:
            comparison = TreeComparison(self._snapshot, store, await store.tree(files))
            different = await comparison.differences(self._limits.file)
        return dict.fromkeys([*(file.path for file in different), *files.unread], "modified")


def folder_name(name: str) -> str:
    """A short, unique name that is valid on every file system."""
    plain = _UNSAFE.sub("-", name.lower())[:_MAX_NAME_LENGTH].strip("-")
    if plain and plain == name:
        return plain
    return f"{plain}-{hashlib.blake2b(name.encode(errors='replace'), digest_size=5).hexdigest()}".lstrip("-")


T = TypeVar("T")

_log = logging.getLogger("batch_agent")

_NOT_ALPHANUMERIC = re.compile("[^A-Za-z0-9]")
# Replacements, for the model, of paths that belong to one agent or one run, so that all prompts share a prefix.
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
    """The workspaces of a run, all of which are copies of one snapshot."""

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
        """Environment for programs in a workspace: if an agent removes its repository, git does not search the parent
        directories."""
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
        # Claude Code and Qwen Code keep a directory per project in the home directory, with a name of this form.
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
        """The agent's own directory outside the working copy."""
        return self.copy.path.parent

    async def changes(self) -> Changes:
        """Raises ProgramFailed."""
        return await self.workspaces.changes(self.copy)

    async def write_files(self, work: Callable[[], T]) -> T:
        """Runs `work`, which writes files next to the working copy, in a thread. If it fails or is cancelled, removes
        the workspace. Raises ProgramFailed."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            await self.remove()
            raise ProgramFailed(f"{str(self.private_dir)!r} cannot be written: {error.strerror}.") from error
        except asyncio.CancelledError:
            await self.remove()
            raise

    def relativize(self, text: str) -> str:
        """Makes paths in the working copy relative, because the copy will be removed and its contents belong in the
        user's directory."""
        if self.keep:
            return text
        return text.replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), ".")

    async def remove(self) -> None:
        """Removes the workspace. Never raises. Files that cannot be removed now are removed with the run's
        directory."""
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
