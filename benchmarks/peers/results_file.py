"""The file of results: each part is kept as soon as it is measured, beside what was there of others."""

import json
from pathlib import Path

from benchmarks import report
from benchmarks.peers.environments import PINS
from benchmarks.peers.runs import Numbers
from benchmarks.peers.targets import targets

_WHEN = ("commit", "changed_files", "date", "machine")


class Kept:
    """What was measured at another time says when and where. Without a path nothing is written."""

    def __init__(self, path: Path | None, commit: str | None) -> None:
        self._path = path
        self._commit = commit
        self.parts = self._before()

    def put(self, part: str, numbers: Numbers) -> None:
        self.parts[part] = numbers
        if self._path is not None:
            found = {"pins": PINS, "parts": self.parts, "targets": targets(self.parts)}
            report.write("peers", found, self._path, commit=self._commit)

    def _before(self) -> dict[str, Numbers]:
        if self._path is None or not self._path.exists():
            return {}
        found = json.loads(self._path.read_text())
        when = {name: found[name] for name in _WHEN}
        return {part: {"from": when} | numbers for part, numbers in found["parts"].items()}
