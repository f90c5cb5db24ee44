"""The directory that keeps downloaded and converted weights between runs."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batch_agent.files import DRAFT, remove_old_drafts


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
    """A path to write to; it becomes `target` when the block ends well and disappears when it does not.

    Two processes may write the same target at once: each has its own file and the last one wins.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_old_drafts(target.parent, f".{target.name}.")
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=DRAFT)
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.chmod(0o644)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
