"""A folder for each coding agent: its own copy of the user's, where it steps on nobody."""

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
from .diff import TreeComparison, shown
from .object_store import Import
from .seed_repo import detach, install_seed_repo
from .snapshot import Snapshot
from .tree import FileEntry, erase, walk

_ODD = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 24
_BOUNDS = DiffLimits()


class Workspaces:
    """All of one snapshot. To an agent, its copy is an ordinary repository: a branch `main` of one commit, nothing
    changed, no remote. What an agent does to that repository changes nothing for the others, nor for us."""

    def __init__(self, original: Snapshot, root: Path, bounds: DiffLimits = _BOUNDS) -> None:
        """`root`: where the copies are; best outside of any repository. It is made when it is not there."""
        self._original = original
        self._root = Path(os.path.abspath(root))
        self._bounds = bounds

    async def make(self, name: str) -> WorkingCopy:
        """The same name gives the same folder, in place of what an earlier agent left there. Raises ProgramFailed."""
        path = self._root / folder_name(name)
        where = (f"--git-dir={path / '.git'}", f"--work-tree={path}")
        try:
            await asyncio.to_thread(self._place, path)
            await self._original.store.git.run("read-tree", "-m", "-u", "HEAD", options=where, cwd=path)
            return await asyncio.to_thread(self._copy, path)
        except OSError as error:
            raise ProgramFailed(f"{str(path)!r} cannot be made: {error.strerror}.") from error

    async def changes(self, copy: WorkingCopy) -> Changes:
        """What is different from the snapshot by now, without new files that git ignores. Whatever the agent committed
        counts as much as what it did not. It should not be at work meanwhile. Raises ProgramFailed."""
        try:
            found = await changed_files(self._original, copy, self._bounds)
            if found.is_nothing:
                return Changes(is_cut=not found.is_whole)
            return await self._compared(copy, found)
        except OSError as error:
            raise ProgramFailed(f"{str(copy.path)!r} cannot be read: {error.strerror}.") from error

    async def keep(self, copy: WorkingCopy) -> None:
        """Has the copy stand on its own, for the user: it needs nothing of the run any more. Raises ProgramFailed."""
        try:
            await asyncio.to_thread(detach, self._original.store, copy.path)
        except OSError as error:
            raise ProgramFailed(f"{str(copy.path)!r} cannot be kept: {error.strerror}.") from error

    def _place(self, path: Path) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        erase(os.fsencode(path))
        install_seed_repo(self._original.store, path)

    def _copy(self, path: Path) -> WorkingCopy:
        """The index is written last: what is changed from now on is changed after it."""
        places = self._original.places
        inodes = array("Q", bytes(8 * len(places)))
        for file, entry in walk(os.fsencode(path), most=len(places)).entries.items():
            if file in places:
                inodes[places[file]] = entry.inode
        return WorkingCopy(path, inodes, os.stat(path / ".git" / "index").st_ctime_ns)

    async def _compared(self, copy: WorkingCopy, found: ChangedFiles) -> Changes:
        original, root = self._original, os.fsencode(copy.path)
        large = {**found.large, **await self._changed(root, found.doubtful)}
        files = Import(root, found.small, is_ours=True)
        async with original.store.aside() as store:
            comparison = TreeComparison(original, store, await store.tree(files, found.deleted))
            different = await comparison.differences(self._bounds.file)
            patch, is_cut = await comparison.patch(different, self._bounds.patch)
        large.update({path: "modified" if path in original.places else "added" for path in files.unread})
        changes = [*(file.change for file in different), *(FileChange(shown(path), large[path]) for path in large)]
        changes.sort(key=lambda change: change.path)
        return Changes(tuple(changes), patch, is_cut or bool(large) or not found.is_whole)

    async def _changed(self, root: bytes, entries: Mapping[bytes, FileEntry]) -> dict[bytes, ChangeKind]:
        """Those of the files of the snapshot that are different, or cannot be read."""
        if not entries:
            return {}
        files = Import(root, entries, is_ours=True)
        async with self._original.store.aside() as store:
            comparison = TreeComparison(self._original, store, await store.tree(files))
            different = await comparison.differences(self._bounds.file)
        return dict.fromkeys([*(file.path for file in different), *files.unread], "modified")


def folder_name(name: str) -> str:
    """Short, fit for every disk, and another one for every name."""
    plain = _ODD.sub("-", name.lower())[:_LONGEST].strip("-")
    if plain and plain == name:
        return plain
    return f"{plain}-{hashlib.blake2b(name.encode(errors='replace'), digest_size=5).hexdigest()}".lstrip("-")
