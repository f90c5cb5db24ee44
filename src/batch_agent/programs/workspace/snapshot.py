"""Snapshot of the user's directory at the start of the run, from which agents get their copies."""

import asyncio
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ProgramFailed
from .file_list import FileList, SizeLimits, list_folder, missing_workdir, unreadable
from .git import Git, find_git
from .object_store import Import, ObjectStore
from .seed_repo import create_seed_repo

_REF = "refs/heads/main"
_SIZE_LIMITS = SizeLimits()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot in a repository of its own. Nothing is ever written to the user's directory or its repository.

    It contains the files that git tracks, changed or not, and new files that git does not ignore; of a plain directory,
    everything except histories such as .hg. Nested repositories and submodules are plain files. Contents are kept byte
    for byte, and links stay links. Empty directories, permissions other than execute, pipes, sockets and devices are
    not kept."""

    store: ObjectStore
    tree: str
    """Object name of the tree in the store."""
    numbers: Mapping[bytes, int]
    """Number of each path in the snapshot."""
    sizes: "array[int]"
    """Sizes in bytes, by number."""
    prefix: bytes
    """Path of the directory in the user's repository, with a trailing slash; empty at its root."""

    @classmethod
    async def take(cls, workdir: Path | None, folder: Path, limits: SizeLimits = _SIZE_LIMITS) -> Self:
        """Takes a snapshot. `workdir`: None for an empty directory. `folder`: an existing empty directory, which must
        stay as long as there are copies. Raises SpecError if git is missing or too old, or if `workdir` does not exist,
        is too large or cannot be read."""
        try:
            git = await find_git(folder)
            listing = await _list_files(git, workdir, folder, limits)
            store = await ObjectStore.create(git, folder)
            files = Import(listing.root, listing.entries)
            tree = await store.tree(files)
            await store.commit(tree, _REF, b"The folder as it was given")
            await create_seed_repo(store, _REF, listing.excludes)
        except (ProgramFailed, OSError) as error:
            raise SpecError(f"workdir={str(workdir)!r} cannot be copied: {error}") from error
        if files.unread:
            raise unreadable(listing.root, files.unread)
        numbers = {path: number for number, path in enumerate(listing.entries)}
        sizes = array("Q", (entry.size for entry in listing.entries.values()))
        return cls(store, tree, numbers, sizes, listing.prefix)


async def _list_files(git: Git, workdir: Path | None, folder: Path, limits: SizeLimits) -> FileList:
    if workdir is None:
        return FileList(os.fsencode(folder))
    root = await asyncio.to_thread(_real_path, workdir)
    listing = await list_folder(git, root, limits)
    ours = os.path.join(await asyncio.to_thread(_real_path, folder), b"").removeprefix(os.path.join(root, b""))
    for path in [path for path in listing.entries if path.startswith(ours)]:
        del listing.entries[path]
    return listing


def _real_path(path: Path) -> bytes:
    root = os.path.realpath(os.fsencode(path))
    if not os.path.isdir(root):
        raise missing_workdir(path)
    return root
