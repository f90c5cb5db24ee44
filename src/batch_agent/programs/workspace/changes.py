"""Which files of a copy an agent may have changed, found without running git in it: an agent can have put anything
into its folder, such as a pipe in place of an ignore file, or a program into the configuration of its repository."""

import asyncio
import os
import tempfile
from array import array
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

from ...core.fast_dataclass import dataclass
from ...core.results import ChangeKind
from .snapshot import Snapshot
from .tree import FileEntry, Tree, erase, is_folder, open_up, walk

_MOST_ENTRIES = 1_000_000
_LARGEST_IGNORE = 2**20
_ROUNDS = 20
_HERE = b"./"
"""Has a name that begins with a colon mean nothing special."""


@dataclass(frozen=True, slots=True)
class DiffLimits:
    """How much of an agent's work is looked at. What is beyond is told by name."""

    file: int = 8 * 2**20
    """Bytes of a file."""
    fresh: int = 256 * 2**20
    """Bytes of all new files together."""
    patch: int = 8 * 2**20
    """Bytes of the patch."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkingCopy:
    """One agent's own folder."""

    path: Path
    inodes: "array[int]"
    """Of the files of the snapshot, by their number there."""
    since_ns: int
    """What was last changed before then is as it was given."""

    def is_as_given(self, place: int, entry: FileEntry) -> bool:
        return entry.inode == self.inodes[place] and entry.changed_ns < self.since_ns


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """All that may be different from the snapshot."""

    small: dict[bytes, FileEntry]
    """Files to compare."""
    doubtful: dict[bytes, FileEntry]
    """Files that are too large for a patch, to be compared before they are told by name."""
    large: dict[bytes, ChangeKind]
    """Files that are too large for a patch, and changed."""
    deleted: list[bytes]
    is_whole: bool
    """Whether all of the folder could be looked at. If not, nothing counts as deleted."""

    @property
    def is_nothing(self) -> bool:
        return not (self.small or self.doubtful or self.large or self.deleted)


async def changed_files(original: Snapshot, copy: WorkingCopy, bounds: DiffLimits) -> ChangedFiles:
    """Raises ProgramFailed, OSError."""
    root = os.fsencode(copy.path)
    tree, fresh = await asyncio.to_thread(_look_through, root, original.places)
    ignored = await _ignored(original, root, tree, fresh) if fresh else frozenset()
    return await asyncio.to_thread(_sorted_out, original, copy, tree, ignored, bounds)


def _look_through(root: bytes, given: Container[bytes]) -> tuple[Tree, list[bytes]]:
    """What is there, and which of it was not given."""
    tree = _opened(root) if is_folder(root) else Tree({})
    return tree, [path for path in tree.entries if path not in given]


def _opened(root: bytes) -> Tree:
    tree = walk(root, most=_MOST_ENTRIES)
    for _ in range(_ROUNDS):
        if not open_up(root, tree):
            break
        tree = walk(root, most=_MOST_ENTRIES)
    return tree


async def _ignored(original: Snapshot, root: bytes, tree: Tree, paths: Iterable[bytes]) -> frozenset[bytes]:
    """Git is asked about a folder that has nothing but the ignore files."""
    scratch = os.fsencode(tempfile.mkdtemp(dir=original.store.folder))
    try:
        await asyncio.to_thread(_copy_ignore_files, root, tree, scratch)
        said = await original.store.git.run(
            "check-ignore",
            *("-z", "--stdin", "--no-index"),
            options=(
                *(f"--git-dir={original.store.path}", b"--work-tree=" + scratch),
                *("-c", f"core.excludesFile={original.store.excludes}"),
            ),
            cwd=scratch,
            stdin=(_HERE + path + b"\0" for path in paths),
            codes=(0, 1),
        )
        return frozenset(path.removeprefix(_HERE) for path in said.out.split(b"\0"))
    finally:
        await asyncio.to_thread(erase, scratch)


def _copy_ignore_files(root: bytes, tree: Tree, scratch: bytes) -> None:
    for path, entry in tree.entries.items():
        if os.path.basename(path) == b".gitignore" and entry.mode != "120000" and entry.size <= _LARGEST_IGNORE:
            with suppress(OSError), open(os.path.join(root, path), "rb") as file:
                text = file.read(_LARGEST_IGNORE)
                os.makedirs(os.path.join(scratch, os.path.dirname(path)), exist_ok=True)
                Path(os.fsdecode(os.path.join(scratch, path))).write_bytes(text)


def _sorted_out(
    original: Snapshot, copy: WorkingCopy, tree: Tree, ignored: Container[bytes], bounds: DiffLimits
) -> ChangedFiles:
    found = ChangedFiles({}, {}, {}, [], tree.is_whole and not tree.closed)
    fresh = 0
    for path, entry in tree.entries.items():
        place = original.places.get(path)
        if place is None and path not in ignored:
            fresh += entry.size
            if entry.size > bounds.file or fresh > bounds.fresh:
                found.large[path] = "added"
            else:
                found.small[path] = entry
        elif place is not None and not copy.is_as_given(place, entry):
            if max(entry.size, original.sizes[place]) <= bounds.file:
                found.small[path] = entry
            elif entry.size == original.sizes[place]:
                found.doubtful[path] = entry
            else:
                found.large[path] = "modified"
    for path, place in original.places.items() if found.is_whole else ():
        if path not in tree.entries and original.sizes[place] > bounds.file:
            found.large[path] = "deleted"
        elif path not in tree.entries:
            found.deleted.append(path)
    return found
