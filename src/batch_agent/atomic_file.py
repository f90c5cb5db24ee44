"""Atomic replacement of files, private files and directories, and file locks."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .core.errors import SpecError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DRAFT = ".batch-agent-draft"
"""Suffix of temporary files."""
_STALE_SECONDS = 86_400.0
_PRIVATE_FOLDER, _PRIVATE_FILE, _REGULAR_FILE = 0o700, 0o600, 0o666


def make_private_dir(path: Path) -> None:
    """Creates a directory that only its owner can read, with its missing parents. The mode of an existing directory is
    not changed. Raises OSError."""
    if not path.is_dir():
        if path.parent != path:
            make_private_dir(path.parent)
        path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def open_private(path: Path, flags: int) -> int:
    """Opens a file and returns its descriptor. If the file is created, only its owner can read it. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), _PRIVATE_FILE)


def temporary_path(path: Path) -> Path:
    """Path of a temporary file that is to replace `path`. Removes stale ones that killed processes left."""
    remove_stale_temporaries(path.parent, f".{path.name}.")
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}{DRAFT}")


def remove_stale_temporaries(folder: Path, prefix: str) -> None:
    """Removes temporary files and directories with this prefix that were last modified more than a day ago: no running
    process uses them. Never raises."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(DRAFT):
                with suppress(OSError):
                    _remove_if_old(entry)


def _remove_if_old(temporary: "os.DirEntry[str]") -> None:
    if time.time() - temporary.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
        return
    if temporary.is_dir(follow_symlinks=False):
        import shutil  # rarely needed, and slow to import

        shutil.rmtree(temporary.path, ignore_errors=True)
    else:
        os.unlink(temporary.path)


@contextmanager
def atomic_write(path: Path, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """Binary file that replaces `path` when the block ends without an exception. Only its owner can read a private one.
    Raises SpecError for a path that cannot be written."""
    if path.exists() and not path.is_file():
        raise SpecError(f"{str(path)!r} cannot be written: it is not a regular file.")
    try:
        if is_private:
            make_private_dir(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as temporary, _new_file(temporary, _mode(path, is_private)) as file:
            yield file
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Path of a temporary file that replaces `path` when the block ends, and is removed if the block raises. Processes
    that replace the same file at once use separate temporary files, and the last one wins. Raises OSError."""
    temporary = temporary_path(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def try_lock(file: int, *, is_shared: bool = False) -> bool | None:
    """Takes the lock of an open file, which the process holds until it closes the file or dies. False: another process
    holds it. None: the platform has no such locks. Raises OSError for a file system without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _new_file(path: Path, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")


def _mode(path: Path, is_private: bool) -> int:
    """Mode of the new file: that of an existing private file, which its owner may have changed."""
    if is_private and path.exists():
        return path.stat().st_mode & 0o777
    return _PRIVATE_FILE if is_private else _REGULAR_FILE
