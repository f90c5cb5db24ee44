"""Finds files of a working copy that an agent may have changed, without running git in it: an agent may have put
anything there, such as a pipe in place of an ignore file, or a program into the repository's configuration."""

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

_MAX_ENTRIES = 1_000_000
_MAX_IGNORE_BYTES = 2**20
_OPEN_ATTEMPTS = 20
_HERE = b"./"
"""Prevents git from treating a leading colon as pathspec magic."""


@dataclass(frozen=True, slots=True)
class DiffLimits:
    """Sizes above which changed files are only listed."""

    file: int = 8 * 2**20
    """Bytes per file."""
    new: int = 256 * 2**20
    """Bytes of all new files together."""
    patch: int = 8 * 2**20
    """Bytes of the patch."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkingCopy:
    """An agent's copy of the snapshot."""

    path: Path
    inodes: "array[int]"
    """Inodes of the snapshot's files, by number."""
    since_ns: int
    """Time before which changes were made by the copying, not by the agent."""

    def is_unchanged(self, number: int, entry: FileEntry) -> bool:
        return entry.inode == self.inodes[number] and entry.changed_ns < self.since_ns


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """Files that may differ from the snapshot."""

    small: dict[bytes, FileEntry]
    """Files to compare."""
    unverified: dict[bytes, FileEntry]
    """Files too large for a patch whose size is unchanged, to be compared by content."""
    large: dict[bytes, ChangeKind]
    """Files that are too large for a patch, and changed."""
    deleted: list[bytes]
    is_whole: bool
    """Whether the whole directory could be read. If not, no file counts as deleted."""

    @property
    def is_nothing(self) -> bool:
        return not (self.small or self.unverified or self.large or self.deleted)


async def changed_files(snapshot: Snapshot, copy: WorkingCopy, limits: DiffLimits) -> ChangedFiles:
    """Raises ProgramFailed, OSError."""
    root = os.fsencode(copy.path)
    tree, new = await asyncio.to_thread(_scan_copy, root, snapshot.numbers)
    ignored = await _ignored(snapshot, root, tree, new) if new else frozenset()
    return await asyncio.to_thread(_classify, snapshot, copy, tree, ignored, limits)


def _scan_copy(root: bytes, known: Container[bytes]) -> tuple[Tree, list[bytes]]:
    """All files, and the new ones among them."""
    tree = _walk_all(root) if is_folder(root) else Tree({})
    return tree, [path for path in tree.entries if path not in known]


def _walk_all(root: bytes) -> Tree:
    tree = walk(root, limit=_MAX_ENTRIES)
    for _ in range(_OPEN_ATTEMPTS):
        if not open_up(root, tree):
            break
        tree = walk(root, limit=_MAX_ENTRIES)
    return tree


async def _ignored(snapshot: Snapshot, root: bytes, tree: Tree, paths: Iterable[bytes]) -> frozenset[bytes]:
    """Ignored paths, as determined by git in a directory that contains only the ignore files."""
    scratch = os.fsencode(tempfile.mkdtemp(dir=snapshot.store.folder))
    try:
        await asyncio.to_thread(_copy_ignore_files, root, tree, scratch)
        output = await snapshot.store.git.run(
            "check-ignore",
            *("-z", "--stdin", "--no-index"),
            options=(
                *(f"--git-dir={snapshot.store.path}", b"--work-tree=" + scratch),
                *("-c", f"core.excludesFile={snapshot.store.excludes}"),
            ),
            cwd=scratch,
            stdin=(_HERE + path + b"\0" for path in paths),
            codes=(0, 1),
        )
        return frozenset(path.removeprefix(_HERE) for path in output.out.split(b"\0"))
    finally:
        await asyncio.to_thread(erase, scratch)


def _copy_ignore_files(root: bytes, tree: Tree, scratch: bytes) -> None:
    for path, entry in tree.entries.items():
        if os.path.basename(path) == b".gitignore" and entry.mode != "120000" and entry.size <= _MAX_IGNORE_BYTES:
            with suppress(OSError), open(os.path.join(root, path), "rb") as file:
                text = file.read(_MAX_IGNORE_BYTES)
                os.makedirs(os.path.join(scratch, os.path.dirname(path)), exist_ok=True)
                Path(os.fsdecode(os.path.join(scratch, path))).write_bytes(text)


def _classify(
    snapshot: Snapshot, copy: WorkingCopy, tree: Tree, ignored: Container[bytes], limits: DiffLimits
) -> ChangedFiles:
    found = ChangedFiles({}, {}, {}, [], tree.is_whole and not tree.closed)
    new = 0
    for path, entry in tree.entries.items():
        number = snapshot.numbers.get(path)
        if number is None and path not in ignored:
            new += entry.size
            if entry.size > limits.file or new > limits.new:
                found.large[path] = "added"
            else:
                found.small[path] = entry
        elif number is not None and not copy.is_unchanged(number, entry):
            if max(entry.size, snapshot.sizes[number]) <= limits.file:
                found.small[path] = entry
            elif entry.size == snapshot.sizes[number]:
                found.unverified[path] = entry
            else:
                found.large[path] = "modified"
    for path, number in snapshot.numbers.items() if found.is_whole else ():
        if path not in tree.entries and snapshot.sizes[number] > limits.file:
            found.large[path] = "deleted"
        elif path not in tree.entries:
            found.deleted.append(path)
    return found
