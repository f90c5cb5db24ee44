"""Entries of `fallback=`, and the names that they have in the report, in a checkpoint and at a coordinator."""

import re
from collections.abc import Sequence
from typing import Any

from ..safe_text import public_url
from .backend_settings import BackendSettings

FALLBACK_PREFIX = "fallback-"
"""Begins the name of the directory of each fallback, in the checkpoint of a run, and that of its shared run."""
FIRST_STAGE = "first"
"""Name of the shared run of the first backend, within that of all."""
_FALLBACK_NAME = re.compile(r"fallback (\d+) \(")


def parse_fallback(entry: Any) -> tuple[str | None, Any]:
    """The model and the backend of an entry of `fallback`; None for the server's only model, and for the same
    backend."""
    if isinstance(entry, BackendSettings):
        return entry.model, entry
    if not isinstance(entry, str):
        return None, entry
    name, mark, url = entry.partition("=")
    if mark and "://" in url and "://" not in name:
        return name, url
    return (None, entry) if "://" in entry else (entry, None)


def fallback_names(model: str | None, fallbacks: Sequence[Any]) -> list[str]:
    """Names of the runs of all backends in the report. `model`: of the first one."""
    names = [model or "first"]
    for number, entry in enumerate(fallbacks, 1):
        model, backend = parse_fallback(entry)
        url = backend.label if isinstance(backend, BackendSettings) else backend
        names.append(f"fallback {number} ({model or (public_url(url) if isinstance(url, str) else 'backend')})")
    return names


def fallback_folder(name: str) -> str | None:
    """Directory of a fallback in the checkpoint, by its name in the report; None for the run's own backend."""
    found = _FALLBACK_NAME.match(name)
    return None if found is None else f"{FALLBACK_PREFIX}{found[1]}"


def stage_names(fallbacks: int) -> list[str]:
    """Names of the shared runs of all backends, within that of all."""
    return [FIRST_STAGE, *(f"{FALLBACK_PREFIX}{number}" for number in range(1, fallbacks + 1))]
