"""Cache directory for model weights, with the SHA-256 of each file, which is computed again only if the file
changed."""

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


def record_digest(path: Path) -> None:
    """Records the SHA-256 of a file that was just created here. Raises OSError."""
    _write_record(f"made {path}", _digest_of(path))


def matches_record(path: Path) -> bool:
    """Whether the file still has the SHA-256 that `record_digest` recorded."""
    digest = _records().get(f"made {path}")
    return isinstance(digest, str) and is_verified(path, digest)


def _digest_of(path: Path) -> str:
    """Raises OSError."""
    known, state = _records().get(str(path)), _file_state(path)
    if isinstance(known, dict) and known.get("file") == state:
        return str(known.get("sha256"))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _write_record(str(path), {"file": state, "sha256": digest})
    return digest


def _file_state(path: Path) -> list[int]:
    """Metadata that changes with every write. Unlike the modification time, ctime cannot be set by a program."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _records() -> dict[str, Any]:
    try:
        records = orjson.loads(_records_file().read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return records if isinstance(records, dict) else {}


def _write_record(name: str, entry: Any) -> None:
    try:
        with written_atomically(_records_file()) as unfinished:
            unfinished.write_bytes(orjson.dumps({**_records(), name: entry}))
    except OSError:
        return  # the digest is computed again next time


def _records_file() -> Path:
    return cache_directory() / "verified.json"


class EmbeddedModelError(RuntimeError):
    """The embedded model cannot be used; the message says why and what to do next. Trying again does not help."""
