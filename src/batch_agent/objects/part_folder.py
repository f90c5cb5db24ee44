"""Folder of results in an object store: parts that are written once, and a manifest of them.

A part has its own name and appears as a whole, so a reader of all parts never sees a partial one, and a request that is
repeated after a lost response changes nothing. The parts of an earlier run are deleted before the first part is
written, so no row is there twice.

Of several runs with one folder, the one that started last owns it. Each reads the manifest before it replaces it, and
not every store can do both in one step. A run whose manifest was replaced by an earlier run therefore writes its own
again, and the earlier run finds it at its next part."""

import os
import re
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps, loads
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentResult
from .store_client import StoreClient

MANIFEST = "_manifest.json"
_PART = re.compile(r"part-\d{5,}-[0-9a-f]{8}\.(?:jsonl|csv|parquet)$")
_CLOCK_STEP = 1e-3
_UPLOAD_TRIES = 25
"""About five minutes, during which the run continues."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of results, with their tokens and dollars."""

    answered: int = 0
    failed: int = 0
    usage: Usage = NO_USAGE
    cost: float | None = None

    @property
    def rows(self) -> int:
        return self.answered + self.failed

    def plus(self, result: AgentResult) -> "Totals":
        return self.merged(Totals(int(result.ok), int(not result.ok), result.usage, result.cost))

    def merged(self, other: "Totals") -> "Totals":
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Totals(
            self.answered + other.answered,
            self.failed + other.failed,
            self.usage + other.usage,
            sum(costs) if costs else None,
        )


class PartFolder:
    """One run's parts in a folder. Its methods block and raise SpecError. Only one thread may call them."""

    def __init__(self, url: str, suffix: str, label: str) -> None:
        """`url`: ends in a slash. `suffix`: of the parts, such as .jsonl. Connects to the store."""
        self._url = url
        self._suffix = suffix
        self._name = f"{label} {url!r}"
        self._store = StoreClient(url, label, _UPLOAD_TRIES)
        self._writer = os.urandom(4).hex()
        self._totals = Totals()
        self._parts: list[dict[str, Any]] = []
        self._has_begun = False
        self._started = time.time()
        """Later than the start of every run whose manifest was there before this run began, whatever the clocks say."""
        self._found: str | None = None
        """Writer of the manifest that was there before this run."""

    def check(self) -> None:
        """Lists the folder, so that a run that cannot write to it does not start."""
        self._store.files(self._url)
        found = self._current()
        self._found = found.get("writer")
        self._started = max(self._started, found.get("started", 0.0) + _CLOCK_STEP)

    def add(self, file: Path, totals: Totals, *, has_failed: bool = False) -> None:
        """Uploads a part and adds it to the manifest. `has_failed`: whether the run ended with an error, possibly
        because of a later run that may already write to the folder. In that case, the later run keeps the folder."""
        self._begin(has_failed=has_failed)
        self._keep()
        name = f"part-{len(self._parts):05}-{self._writer}{self._suffix}"
        self._store.upload(file, f"{self._url}{name}")
        try:
            self._keep()
        except SpecError:
            self._store.delete([f"{self._url}{name}"])
            raise
        self._parts.append({"name": name, "rows": totals.rows, "bytes": file.stat().st_size})
        self._totals = self._totals.merged(totals)
        self._store.replace(self._url + MANIFEST, self._manifest(is_complete=False))

    def finish(self) -> None:
        """Deletes parts that a run killed while it lost the folder may have left, and marks the manifest as
        complete."""
        self._begin()
        own, others = self._listed()
        self._keep()
        self._check_all(own)
        self._store.delete(others)
        self._store.replace(self._url + MANIFEST, self._manifest(is_complete=True))

    def _begin(self, *, has_failed: bool = False) -> None:
        """Replaces the manifest of an earlier run and then deletes its parts, so that a reader of the manifest never
        misses a part that it names. A run that started later, and has already begun, keeps the folder."""
        if self._has_begun:
            return
        # Listed before the manifest is read: a later run writes its parts after its manifest, so they are not among
        # these.
        _, others = self._listed()
        current = self._current()
        if current.get("writer") != self._found and (has_failed or self._is_earlier_than(current)):
            raise self._taken()
        self._store.replace(self._url + MANIFEST, self._manifest(is_complete=False))
        self._store.delete(others)
        self._has_begun = True

    def _keep(self) -> None:
        """Raises SpecError if a run that started later owns the folder, or the manifest was deleted."""
        current = self._current()
        if not current:
            raise SpecError(f"{self._name}: {MANIFEST} was deleted while a run wrote to this folder.")
        if current.get("writer") == self._writer:
            return
        if self._is_earlier_than(current):
            raise self._taken()
        self._store.replace(self._url + MANIFEST, self._manifest(is_complete=False))
        own, others = self._listed()
        self._store.delete(others)
        self._check_all(own)

    def _is_earlier_than(self, manifest: Mapping[str, Any]) -> bool:
        """Whether this run started before the one that wrote the manifest."""
        return (self._started, self._writer) < (manifest.get("started", 0.0), manifest.get("writer", ""))

    def _listed(self) -> tuple[set[str], list[str]]:
        """Names of this run's parts in the folder, and URLs of the parts of other runs."""
        found = [file for file in self._store.files(self._url) if _is_part(file.url, self._url)]
        own = {file.name for file in found if f"-{self._writer}." in file.name}
        return own, [file.url for file in found if file.name not in own]

    def _check_all(self, own: Set[str]) -> None:
        missing = [part["name"] for part in self._parts if part["name"] not in own]
        if missing:
            raise SpecError(f"{self._name}: {missing[0]} was deleted while a run wrote to this folder.")

    def _current(self) -> dict[str, Any]:
        """The manifest in the folder; empty if there is none."""
        found = self._store.read(self._url + MANIFEST)
        return {} if found is None else loads(found)

    def _taken(self) -> SpecError:
        return SpecError(f"{self._name} is being written by another run, which started later: use another folder.")

    def _manifest(self, *, is_complete: bool) -> bytes:
        totals = self._totals
        usage = totals.usage
        return dumps(
            {
                "version": 1,
                "writer": self._writer,
                "started": self._started,
                "complete": is_complete,
                "rows": totals.rows,
                "answered": totals.answered,
                "failed": totals.failed,
                "tokens": {
                    "input": usage.input,
                    "cached": usage.cached,
                    "written": usage.all_written,
                    "output": usage.output,
                },
                "cost": totals.cost,
                "parts": self._parts,
            }
        )


def _is_part(url: str, folder: str) -> bool:
    """Whether the URL is a part directly in the folder."""
    return _PART.match(url.rpartition("/")[2]) is not None and url.rstrip("/").count("/") == folder.count("/")
