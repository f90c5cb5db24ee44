"""Files that are replaced as a whole, files and folders that only their owner can read, and locks of files."""

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
"""How the names of drafts end."""
_ABANDONED_SECONDS = 86_400.0
_PRIVATE_FOLDER, _PRIVATE_FILE, _ORDINARY_FILE = 0o700, 0o600, 0o666


def make_private_dir(path: Path) -> None:
    """With the folders above that are missing. One that is there stays as it is: its owner has decided. Raises
    OSError."""
    if not path.is_dir():
        if path.parent != path:
            make_private_dir(path.parent)
        path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file that, if it is made here, only its owner can read. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), _PRIVATE_FILE)


def temporary_path(path: Path) -> Path:
    """Where this process writes what is to take the place of `path`. Drafts of it that killed processes left go."""
    remove_stale_temporaries(path.parent, f".{path.name}.")
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}{DRAFT}")


def remove_stale_temporaries(folder: Path, prefix: str) -> None:
    """Removes files and folders that are drafts by the end of their names and were last written to a day ago, as no
    process does that is still at work. Never raises."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(DRAFT):
                with suppress(OSError):
                    _remove_if_old(entry)


def _remove_if_old(draft: "os.DirEntry[str]") -> None:
    if time.time() - draft.stat(follow_symlinks=False).st_mtime < _ABANDONED_SECONDS:
        return
    if draft.is_dir(follow_symlinks=False):
        import shutil  # next to no process comes to it

        shutil.rmtree(draft.path, ignore_errors=True)
    else:
        os.unlink(draft.path)


@contextmanager
def atomic_write(path: Path, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once the block is left, if nothing went wrong in it. Only its
    owner can read a private one. Raises SpecError for a place that cannot be written."""
    if path.exists() and not path.is_file():
        raise SpecError(f"{str(path)!r} cannot be written: it is no ordinary file.")
    try:
        if is_private:
            make_private_dir(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as draft, _new_file(draft, _mode(path, is_private)) as file:
            yield file
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """A draft to write: it replaces `path` when the block ends, and is removed when the block raises. Two processes may
    replace the same file at once: each has a draft of its own, and the last one wins. Raises OSError."""
    draft = temporary_path(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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
    """As the file that is there has it, if its owner has decided."""
    if is_private and path.exists():
        return path.stat().st_mode & 0o777
    return _PRIVATE_FILE if is_private else _ORDINARY_FILE
