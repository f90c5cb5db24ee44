"""Folder that confines file access: no path or link leads outside of it."""

import fnmatch
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", ".tox", "node_modules", "__pycache__"}) | {
    f".{tool}_cache" for tool in ("mypy", "pytest", "ruff")
}
_MAX_FILES = 100_000

Version = tuple[int, int, int]


class RootedFolder:
    """Read access confined to a folder. Paths are relative to it, or absolute and inside of it. Links that lead outside
    are not followed."""

    def __init__(self, root: str | Path | None) -> None:
        """`root=None`: the working directory at the time of each use."""
        self._root = root

    def open(self, path: str) -> BinaryIO:
        """Opens a regular file. Raises PermissionError, FileNotFoundError, and ValueError for an invalid path."""
        base, target = self._locate(path)
        try:
            # Checked before it is opened, because opening a device may have side effects.
            descriptor = _open_below(base, target) if _is_regular(os.stat(target)) else None
        except PermissionError as error:
            raise PermissionError(f"{path!r} may not be read") from error
        except OSError as error:  # also a link created after the path was resolved
            raise FileNotFoundError(f"there is no file {path!r}") from error
        if descriptor is None:
            raise FileNotFoundError(f"there is no file {path!r}" + ": it is a folder" * target.is_dir())
        if not _is_regular(os.fstat(descriptor)):
            os.close(descriptor)
            raise FileNotFoundError(f"there is no file {path!r}")
        return os.fdopen(descriptor, "rb")

    def version(self, path: str) -> Version | None:
        """Version that changes with the file; None if it cannot be opened."""
        try:
            status = os.stat(self._locate(path)[1])
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def files(self, pattern: str) -> tuple[list[str], bool]:
        """The matching paths, sorted, and whether the whole folder was searched. A pattern without a slash matches in
        every folder; one that names a folder matches everything in it."""
        parts = _parts(pattern)
        found: list[str] = []
        for number, path in enumerate(_walk(_real(self._root))):
            if number == _MAX_FILES:
                return sorted(found), False
            if _matches(path, parts):
                found.append(path)
        return sorted(found), True

    def _locate(self, path: str) -> tuple[Path, Path]:
        try:
            base = _real(self._root)
            target = _real(base / path)
        except ValueError as error:
            raise ValueError(f"{path!r} is no path: {error}") from error
        except OSError as error:  # a link deleted while it was followed
            raise FileNotFoundError(f"there is no file {path!r}") from error
        if not target.is_relative_to(base):
            raise PermissionError(f"{path!r} is outside of the folder that may be read; use paths inside of it")
        return base, target


def shown(path: str) -> str:
    """The path on one line, quoted if it has control characters."""
    return path if path.isprintable() else repr(path)


def _real(path: str | Path | None) -> Path:
    return Path(os.path.realpath(path or "."))


def _is_regular(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def _open_below(base: Path, target: Path) -> int:
    """Opens a resolved path component by component, without following components that have become links."""
    if sys.platform == "win32":  # cannot open below a descriptor
        return os.open(target, os.O_RDONLY | os.O_BINARY)
    through = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    *folders, name = target.relative_to(base).parts
    holder = os.open(base, through)
    try:
        for folder in folders:
            inner = os.open(folder, through, dir_fd=holder)
            os.close(holder)
            holder = inner
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=holder)
    finally:
        os.close(holder)


def _walk(base: Path) -> Iterator[str]:
    """Does not descend into linked folders, which may form cycles."""
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(base / below) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            if not below:
                raise
            continue
        for entry in listed:
            kind = _kind(entry, base)
            if kind == "folder" and entry.name not in _SKIPPED:
                pending.append(f"{below}{entry.name}/")
            elif kind == "file":
                yield below + entry.name


def _kind(entry: "os.DirEntry[str]", base: Path) -> Literal["folder", "file", "other"]:
    """Kind of an entry. Entries that are deleted during the search, or not accessible, count as other."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and _leads_inside(entry.path, base)):
            return "file"
    except OSError:
        pass
    return "other"


def _leads_inside(link: str, base: Path) -> bool:
    """Raises OSError."""
    target = _real(link)
    return target.is_relative_to(base) and target.is_file()


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    anywhere = ["**"] if "/" not in pattern else []
    inside = ["**"] if not any(sign in pattern for sign in "*?[") else []
    return [*anywhere, *parts, *inside]


def _matches(path: str, parts: list[str]) -> bool:
    """Matches by simulating all interpretations of `**` at once, so that many of them cost no more than few."""
    reached = _skip_empty({0}, parts)
    for name in path.split("/"):
        reached = _skip_empty(
            {at if parts[at] == "**" else at + 1 for at in reached if at < len(parts) and _is_named(name, parts[at])},
            parts,
        )
    return len(parts) in reached


def _is_named(name: str, part: str) -> bool:
    return part == "**" or fnmatch.fnmatchcase(name, part)


def _skip_empty(reached: set[int], parts: list[str]) -> set[int]:
    """Adds the positions reached because `**` may match nothing."""
    for at in range(len(parts)):
        if at in reached and parts[at] == "**":
            reached.add(at + 1)
    return reached
