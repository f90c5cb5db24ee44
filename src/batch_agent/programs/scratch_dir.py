"""Temporary directory of a run with program agents, removed however the run ends.

A run that ends normally removes its own. If it was killed, the kernel releases its lock, and the next such run of the
same user removes the directory. A directory is removed only if

- its name, owner and mode match, and it contains the marker, a regular file of the same owner;
- the marker was written on this machine: a lock may mean nothing to another machine that shares the disk;
- the marker's lock is free. It is acquired before the marker gets its name, so there is no gap, and process ids, which
  are reused, play no role.

The marker is removed last: what cannot be removed now is found by a later run.
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
_MAX_MARKER_BYTES = 4_096
_in_use: set[str] = set()
"""Directories of this process. Where flock is emulated (NFS), a process does not see its own locks."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Creates a directory for this run. Its path contains no links, because programs may resolve it. Raises OSError."""
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
    """Removes the directories of killed runs, which may take a while. Never raises. In doubt, a directory is kept."""
    with suppress(OSError), os.scandir(_parent()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.path not in _in_use:
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _parent() -> Path:
    return Path(tempfile.gettempdir()).resolve()


def _mark(folder: Path) -> int:
    """Returns the marker's descriptor, locked if the file system supports locks. Programs do not inherit it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f"{_MARKER}.", dir=folder)
    os.write(descriptor, "\n".join([_MAGIC, *_machine(), ""]).encode())
    with suppress(OSError):  # without locks, the directory never counts as abandoned
        try_lock(descriptor)
    os.rename(temporary, folder / _MARKER)
    return descriptor


def _remove_if_abandoned(folder: Path) -> None:
    """Removes a directory, unless it is in use or belongs to something else. Raises OSError if it has disappeared."""
    status = os.lstat(folder)
    is_private = not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or not is_private:
        return
    marker = os.open(folder / _MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _is_ours(marker) and try_lock(marker):
            _remove(folder)
    finally:
        os.close(marker)


def _is_ours(marker: int) -> bool:
    status = os.fstat(marker)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        return False
    magic, *machine = os.read(marker, _MAX_MARKER_BYTES).decode(errors="replace").splitlines() or [""]
    host, boot = _machine()
    return magic == _MAGIC and len(machine) == 2 and (machine[0] == host or (machine[1] == boot != ""))


def _machine() -> tuple[str, str]:
    """Host name and boot id, which is the same in all containers of a machine."""
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
