"""Directory trees, read without following links or opening special files."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from ...core.fast_dataclass import dataclass

_EXCLUDED_NAME = b".git"
_ERASE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file or a link."""

    mode: str
    """Git's file mode."""
    size: int
    inode: int
    changed_ns: int
    """Time of the last change of contents or metadata. A program cannot set it back."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files found below a directory."""

    entries: dict[bytes, FileEntry]
    """Entries by path relative to the root, with slashes."""
    closed: tuple[bytes, ...] = ()
    """Directories that cannot be read."""
    is_whole: bool = True
    """False if the walk stopped at its limit."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def stat_entry(path: bytes) -> FileEntry | None:
    """The entry of a path; None if git cannot store it: directories, sockets, missing files."""
    try:
        return _entry(os.path.basename(path), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def walk(root: bytes, *, limit: int, max_bytes: float = float("inf"), skipped: frozenset[bytes] = frozenset()) -> Tree:
    """Reads a tree without directories named in `skipped`. Stops after more than `limit` files or `max_bytes`."""
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
                if name not in skipped and name.lower() != _EXCLUDED_NAME:
                    pending.append(below + name + b"/")
            elif (entry := _entry(name, found)) is not None:
                entries[below + name] = entry
                size += entry.size
        if len(entries) > limit or size > max_bytes:
            return Tree(entries, tuple(closed), is_whole=False)
    return Tree(entries, tuple(closed))


def is_folder(path: bytes) -> bool:
    """Whether the path is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def open_up(root: bytes, tree: Tree) -> bool:
    """Restores the owner's permissions on directories that an agent made unreadable. Returns whether there were any."""
    for below in tree.closed:
        with suppress(OSError):
            os.chmod(os.path.join(root, below), stat.S_IRWXU)
    return bool(tree.closed)


def erase(path: bytes) -> bool:
    """Removes a directory tree, including read-only files. Returns whether it is gone: another process may still be
    writing there."""
    for _ in range(_ERASE_ATTEMPTS):
        for folder in reversed(list(_remove_files(path))):
            with suppress(OSError):
                os.rmdir(folder)
        if not os.path.lexists(path):
            return True
    return False


def _entry(name: bytes, found: os.stat_result) -> FileEntry | None:
    if name.lower() == _EXCLUDED_NAME:
        return None
    if stat.S_ISREG(found.st_mode):
        mode = "100755" if found.st_mode & stat.S_IXUSR else "100644"
    elif stat.S_ISLNK(found.st_mode) and name.lower() != b".gitmodules":  # git does not check out such a link
        mode = "120000"
    else:
        return None
    return FileEntry(mode, found.st_size, found.st_ino, found.st_ctime_ns)


def _scan(folder: bytes) -> list[tuple[bytes, os.stat_result]]:
    """Lists a directory. A missing one counts as empty."""
    listed = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                listed.append((entry.name, entry.stat(follow_symlinks=False)))
    return listed


def _remove_files(root: bytes) -> Iterator[bytes]:
    """Removes all files and yields the directories, outer ones first."""
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
