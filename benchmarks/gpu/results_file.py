"""The numbers so far, on disk after each of them."""

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks import report

from .vllm_process import say

_SHOWN = (
    "wall_s",
    "first_result_s",
    "computed_tokens",
    "cpu_s",
    "cached_share",
    "ttft_first_turn_s",
    "ttft_later_turns_s",
    "failures",
    "was_cut_off",
)


class Notes:
    """A tree of numbers. Whatever ends the program, what was put here before is in the file, beside the parts that the
    file had already."""

    def __init__(self, path: Path | None, commit: str | None, **about: Any) -> None:
        self._path = path
        self._commit = commit
        self._numbers: dict[str, Any] = about
        self._before = report.parts_before(path)

    def put(self, value: Any, *place: str) -> Path:
        *above, name = place
        branch = self._numbers.setdefault("parts", {})
        for each in above:
            branch = branch.setdefault(each, {})
        branch[name] = value
        parts = self._before | self._numbers["parts"]
        path = report.write("gpu", self._numbers | {"parts": parts}, self._path, commit=self._commit)
        say(f"{' '.join(place)}: {json.dumps(_short(value))}")
        return path

    def get(self, *place: str) -> Any:
        """What was put there; None if nothing was."""
        found: Any = self._numbers.get("parts", {})
        for each in place:
            found = found.get(each) if isinstance(found, dict) else None
        return found

    def keep(self, *files: Path) -> None:
        """Puts copies of files beside the numbers, where those have a place of their own."""
        if self._path is not None:
            for file in files:
                shutil.copy(file, self._path.parent / file.name)


def _short(value: Any) -> Any:
    if isinstance(value, dict) and "server_counted" in value:
        return {name: value.get(name) for name in _SHOWN}
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return [f"{len(value) - 1} before", _short(value[-1])]
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return value
