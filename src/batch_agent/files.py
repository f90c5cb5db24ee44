"""Files that are there whole or not at all."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .core.errors import SpecError

DRAFT = ".batch-agent-draft"
"""How the names of drafts end."""
_ABANDONED_SECONDS = 86_400.0


def draft_of(path: Path) -> Path:
    """Where this process writes what is to take the place of `path`. Drafts of it that killed processes left go."""
    remove_old_drafts(path.parent, f".{path.name}.")
    return path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")


def remove_old_drafts(folder: Path, prefix: str) -> None:
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
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once the block is left, if nothing went wrong in it. Raises
    SpecError for a place that cannot be written."""
    if path.exists() and not path.is_file():
        raise SpecError(f"{str(path)!r} cannot be written: it is no ordinary file.")
    draft = draft_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = draft.open("wb")
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    try:
        with file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
