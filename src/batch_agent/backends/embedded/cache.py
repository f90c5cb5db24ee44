"""The directory that keeps downloaded and converted weights between runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batch_agent.files import atomic_replace


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
