"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .core.errors import SpecError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once the block is left, if nothing went wrong in it. Raises
    SpecError for a place that cannot be written."""
    if path.exists() and not path.is_file():
        raise SpecError(f"{str(path)!r} cannot be written: it is no ordinary file.")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
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
