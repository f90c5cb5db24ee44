"""Working copies of one snapshot: creation and changes."""

import asyncio
import hashlib
import os
import re
from array import array
from collections.abc import Mapping
from pathlib import Path

from ...core.program_runtime import ProgramFailed
from ...core.results import ChangeKind, Changes, FileChange
from .changes import ChangedFiles, DiffLimits, WorkingCopy, changed_files
from .diff import TreeComparison, display_path
from .object_store import Import
from .seed_repo import detach, install_seed_repo
from .snapshot import Snapshot
from .tree import FileEntry, erase, walk

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_MAX_NAME_LENGTH = 24
_DIFF_LIMITS = DiffLimits()


class Workspaces:
    """To an agent, its copy is an ordinary repository: branch `main`, one commit, no changes, no remote. What an agent
    does to that repository affects neither other agents nor the snapshot."""

    def __init__(self, snapshot: Snapshot, root: Path, limits: DiffLimits = _DIFF_LIMITS) -> None:
        """`root` contains the copies, and is best outside any repository. It is created if it does not exist."""
        self._snapshot = snapshot
        self._root = Path(os.path.abspath(root))
        self._limits = limits

    async def make(self, name: str) -> WorkingCopy:
        """The same name gives the same directory and replaces what was there. Raises ProgramFailed."""
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
        running meanwhile. Raises ProgramFailed."""
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
        """The index was written last: what changes from now on is newer."""
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
        """Those of the snapshot's files that differ or cannot be read."""
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
