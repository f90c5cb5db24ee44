"""The user's folder as it was when the run began, from which agents get their copies."""

import asyncio
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ProgramFailed
from .file_list import FileList, SizeLimits, list_folder, unreadable
from .git import Git, find_git
from .object_store import Import, ObjectStore
from .seed_repo import create_seed_repo

_REF = "refs/heads/main"
_MOST = SizeLimits()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, in a repository of ours. Of the user's folder, let alone of a repository there, nothing is ever
    written.

    It has what git tracks there, changed or not, with what is new, without what git ignores; of a plain folder it
    has everything, but for histories such as .hg. Repositories inside, submodules among them, are plain files in it.
    Contents are as they are in the folder, byte for byte; links stay links, wherever they lead. Lost are: empty
    folders; rights other than to execute; pipes, sockets, devices."""

    store: ObjectStore
    tree: str
    """Its name there."""
    places: Mapping[bytes, int]
    """The paths in the snapshot, each with a number."""
    sizes: "array[int]"
    """Bytes of each, by its number."""
    prefix: bytes
    """Where the folder lies in the user's repository, if it is not that itself. Ends with a slash."""

    @classmethod
    async def take(cls, workdir: Path | None, folder: Path, most: SizeLimits = _MOST) -> Self:
        """`workdir` None is an empty folder. `folder` must be there, be empty, and stay for as long as there are
        copies. Raises SpecError if git is missing or too old, if `workdir` is no folder, is too large or cannot be
        read."""
        try:
            git = await find_git(folder)
            listing = await _listed(git, workdir, folder, most)
            store = await ObjectStore.create(git, folder)
            files = Import(listing.root, listing.entries)
            tree = await store.tree(files)
            await store.commit(tree, _REF, b"The folder as it was given")
            await create_seed_repo(store, _REF, listing.excludes)
        except (ProgramFailed, OSError) as error:
            raise SpecError(f"workdir={str(workdir)!r} cannot be copied: {error}") from error
        if files.unread:
            raise unreadable(listing.root, files.unread)
        places = {path: number for number, path in enumerate(listing.entries)}
        sizes = array("Q", (entry.size for entry in listing.entries.values()))
        return cls(store, tree, places, sizes, listing.prefix)


async def _listed(git: Git, workdir: Path | None, folder: Path, most: SizeLimits) -> FileList:
    if workdir is None:
        return FileList(os.fsencode(folder))
    root = await asyncio.to_thread(_real_folder, workdir)
    listing = await list_folder(git, root, most)
    ours = os.path.join(await asyncio.to_thread(_real_folder, folder), b"").removeprefix(os.path.join(root, b""))
    for path in [path for path in listing.entries if path.startswith(ours)]:
        del listing.entries[path]
    return listing


def _real_folder(path: Path) -> bytes:
    root = os.path.realpath(os.fsencode(path))
    if not os.path.isdir(root):
        raise SpecError(f"workdir={str(path)!r} is no folder. Give one that is there, or None for an empty one.")
    return root
