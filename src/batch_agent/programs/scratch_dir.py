"""Temporary folder of a coding run, removed however the run ends.

A run that is left in good order removes its own. One that was killed cannot: the kernel then lets go of its lock, and
the next coding run of the same user removes the folder. A folder is removed only if

- its name, owner and mode are those of ours, and it holds our marker, a regular file of the same owner;
- the marker says that it was made on this machine: a lock may mean nothing to another one that shares the disk;
- nobody holds the marker's lock. It is taken before the marker gets its name, so there is no moment in between, and
  process ids, which are used again, are of no account.

The marker goes last: what cannot be removed now is found by the run after the next.
"""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..atomic_file import try_lock
from .workspace.tree import erase

_PREFIX = "batch-agent-run-"
_MARKER = "owner.lock"
_MAGIC = "temporary folder of a batch-agent run"
_MOST_BYTES = 4_096
_in_use: set[str] = set()
"""Folders of this process. Where flock is emulated (NFS), a process does not see locks of its own."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this run alone. Programs may know it by another name than ours, so its path is without links. Raises
    OSError."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    _in_use.add(str(folder))
    try:
        lock = _mark(folder)
        try:
            yield folder
        finally:
            _remove(folder)
            os.close(lock)
    finally:
        _in_use.discard(str(folder))


def remove_abandoned() -> None:
    """Removes folders of runs that are gone, which may take a while. Never raises; what is in doubt stays."""
    with suppress(OSError), os.scandir(_parent()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.path not in _in_use:
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _parent() -> Path:
    return Path(tempfile.gettempdir()).resolve()


def _mark(folder: Path) -> int:
    """The descriptor of the marker, with its lock where the disk has locks. No program that we start inherits it."""
    descriptor, unnamed = tempfile.mkstemp(prefix=f"{_MARKER}.", dir=folder)
    os.write(descriptor, "\n".join([_MAGIC, *_machine(), ""]).encode())
    with suppress(OSError):  # without locks nobody can take it, and it is never thought to be abandoned
        try_lock(descriptor)
    os.rename(unnamed, folder / _MARKER)
    return descriptor


def _remove_if_abandoned(folder: Path) -> None:
    """Leaves a folder that is in use or not ours. Raises OSError for one that is gone by now."""
    found = os.lstat(folder)
    is_private = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not is_private:
        return
    marker = os.open(folder / _MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _is_ours(marker) and try_lock(marker):
            _remove(folder)
    finally:
        os.close(marker)


def _is_ours(marker: int) -> bool:
    found = os.fstat(marker)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        return False
    magic, *machine = os.read(marker, _MOST_BYTES).decode(errors="replace").splitlines() or [""]
    host, boot = _machine()
    return magic == _MAGIC and len(machine) == 2 and (machine[0] == host or (machine[1] == boot != ""))


def _machine() -> tuple[str, str]:
    """Its name; and what its kernel is known by until it is started again, the same in all containers on it."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname(), boot


def _remove(folder: Path) -> None:
    with suppress(OSError):
        left = [name for name in os.listdir(folder) if name != _MARKER and not erase(os.fsencode(folder / name))]
        if not left:
            (folder / _MARKER).unlink(missing_ok=True)
            folder.rmdir()
