"""Probe of the checkpoint's lock: whether a process is using it."""

import os
from pathlib import Path

from ...atomic_file import try_lock

_LOCK = "run.lock"


def is_held(folder: Path) -> bool | None:
    """Whether a run holds the lock of the checkpoint or of one of its stages; None if unknown. The probe takes the lock
    for a moment, and a run that starts in that moment fails, so call it only if there is no other way to know."""
    locks = [folder / _LOCK, *folder.glob(f"*/{_LOCK}")]
    answers = [_is_locked(lock) for lock in locks if lock.exists()]
    if any(answers):
        return True
    return None if not answers or None in answers else False


def _is_locked(path: Path) -> bool | None:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        is_free = try_lock(file, is_shared=True)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return None if is_free is None else not is_free
