"""Folders as they are: looked at without following a link, without opening what is no ordinary file."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from ...core.fast_dataclass import dataclass

_REFUSED = b".git"
_PASSES = 3


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file, or a link."""

    mode: str
    """As git has it."""
    size: int
    inode: int
    changed_ns: int
    """When anything about it changed, which nobody can set back."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What was found below a folder."""

    entries: dict[bytes, FileEntry]
    """By path, with slashes, from the folder on."""
    closed: tuple[bytes, ...] = ()
    """Folders that cannot be looked into."""
    is_whole: bool = True
    """There was no more than was looked for."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def stat_entry(path: bytes) -> FileEntry | None:
    """None for what git cannot keep, such as a folder, a socket, or nothing at all."""
    try:
        return _entry(os.path.basename(path), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def walk(root: bytes, *, most: int, most_bytes: float = float("inf"), skipped: frozenset[bytes] = frozenset()) -> Tree:
    """Without folders that are `skipped` by name. Goes no further when there is more than `most`."""
    entries: dict[bytes, FileEntry] = {}
    closed = []
    size, pending = 0, [b""]
    while pending:
        below = pending.pop()
        try:
            listed = _scan(os.path.join(root, below))
        except OSError:
            closed.append(below)
            continue
        for name, found in listed:
            if stat.S_ISDIR(found.st_mode):
                if name not in skipped and name.lower() != _REFUSED:
                    pending.append(below + name + b"/")
            elif (entry := _entry(name, found)) is not None:
                entries[below + name] = entry
                size += entry.size
        if len(entries) > most or size > most_bytes:
            return Tree(entries, tuple(closed), is_whole=False)
    return Tree(entries, tuple(closed))


def is_folder(path: bytes) -> bool:
    """Itself, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def open_up(root: bytes, tree: Tree) -> bool:
    """Gives their owner the right to read what an agent took it from. Whether there was any such folder."""
    for below in tree.closed:
        with suppress(OSError):
            os.chmod(os.path.join(root, below), stat.S_IRWXU)
    return bool(tree.closed)


def erase(path: bytes) -> bool:
    """Removes a folder with all that is in it, also what is read-only. Whether it is gone: somebody may still be
    writing there."""
    for _ in range(_PASSES):
        for folder in reversed(list(_emptied(path))):
            with suppress(OSError):
                os.rmdir(folder)
        if not os.path.lexists(path):
            return True
    return False


def _entry(name: bytes, found: os.stat_result) -> FileEntry | None:
    if name.lower() == _REFUSED:
        return None
    if stat.S_ISREG(found.st_mode):
        mode = "100755" if found.st_mode & stat.S_IXUSR else "100644"
    elif stat.S_ISLNK(found.st_mode) and name.lower() != b".gitmodules":  # git checks out no such link
        mode = "120000"
    else:
        return None
    return FileEntry(mode, found.st_size, found.st_ino, found.st_ctime_ns)


def _scan(folder: bytes) -> list[tuple[bytes, os.stat_result]]:
    """What is gone has nothing in it."""
    listed = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                listed.append((entry.name, entry.stat(follow_symlinks=False)))
    return listed


def _emptied(root: bytes) -> Iterator[bytes]:
    """The folders, outer ones first; whatever else there is goes."""
    pending = [root] if is_folder(root) else []
    if not pending:
        with suppress(OSError):
            os.unlink(root)
    while pending:
        folder = pending.pop()
        yield folder
        with suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
            for name, found in _scan(folder):
                path = os.path.join(folder, name)
                if stat.S_ISDIR(found.st_mode):
                    pending.append(path)
                else:
                    os.unlink(path)
