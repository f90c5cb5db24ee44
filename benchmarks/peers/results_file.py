"""The file of results: each part is kept as soon as it is measured, beside what was there of others."""

from pathlib import Path

from benchmarks import report
from benchmarks.peers.environments import PINS
from benchmarks.peers.runs import Numbers
from benchmarks.peers.targets import targets


class Kept:
    """What was measured at another time says when and where. Without a path nothing is written."""

    def __init__(self, path: Path | None, commit: str | None) -> None:
        self._path = path
        self._commit = commit
        self.parts: dict[str, Numbers] = report.parts_before(path)

    def put(self, part: str, numbers: Numbers) -> None:
        self.parts[part] = numbers
        if self._path is not None:
            found = {"pins": PINS, "parts": self.parts, "targets": targets(self.parts)}
            report.write("peers", found, self._path, commit=self._commit)
