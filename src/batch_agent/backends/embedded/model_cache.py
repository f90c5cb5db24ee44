"""The directory that keeps downloaded and converted weights between runs.

SHA-256 of model files, computed once for each file and again when it has changed.

The one error of the embedded backend.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from ...atomic_file import atomic_replace


def cache_directory() -> Path:
    """`$BATCH_AGENT_CACHE`, else the platform's cache directory. It may not exist yet."""
    if chosen := os.environ.get("BATCH_AGENT_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "batch-agent"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "batch-agent" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batch-agent"


@contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """A draft that all users may read; see `atomic_replace`. Makes the directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(target) as draft:
        yield draft
        draft.chmod(0o644)


def is_verified(path: Path, sha256: str) -> bool:
    """Whether the file has this SHA-256. Reads the whole file, unless it is known and unchanged since."""
    try:
        return _digest_of(path) == sha256
    except OSError:
        return False


def record_made(path: Path) -> None:
    """Remembers a file that was just made here, whose SHA-256 nobody knows beforehand. Raises OSError."""
    _keep(f"made {path}", _digest_of(path))


def is_as_made(path: Path) -> bool:
    """Whether the file is still the one that `record_made` was told of."""
    made = _records().get(f"made {path}")
    return isinstance(made, str) and is_verified(path, made)


def _digest_of(path: Path) -> str:
    """Raises OSError."""
    known, seen = _records().get(str(path)), _appearance(path)
    if isinstance(known, dict) and known.get("file") == seen:
        return str(known.get("sha256"))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _keep(str(path), {"file": seen, "sha256": digest})
    return digest


def _appearance(path: Path) -> list[int]:
    """What changes with every write: the time of change cannot be set, as that of modification can."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _records() -> dict[str, Any]:
    try:
        records = orjson.loads(_file().read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return records if isinstance(records, dict) else {}


def _keep(name: str, entry: Any) -> None:
    try:
        with written_atomically(_file()) as unfinished:
            unfinished.write_bytes(orjson.dumps({**_records(), name: entry}))
    except OSError:
        return  # it is computed again


def _file() -> Path:
    return cache_directory() / "verified.json"


class EmbeddedModelError(RuntimeError):
    """The embedded model cannot be used; the message says why and what to do next. Trying again does not help."""
