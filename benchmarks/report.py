"""What every benchmark writes down: its numbers, the commit and the machine."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_WHEN = ("commit", "changed_files", "date", "machine", "gpu")


def write(name: str, numbers: dict[str, Any], path: Path | None = None, *, commit: str | None = None) -> Path:
    """Keeps `numbers` as benchmarks/results/NAME.json, or at `path`, and returns where. `commit` is for a copy of the
    repository without its history."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmark": name, **circumstances(commit), **numbers}, indent=2) + "\n")
    return path


def parts_before(path: Path | None) -> dict[str, Any]:
    """The parts that a file of results has, each with when and where it was measured, as `from`."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text())
    when = {name: found[name] for name in _WHEN if name in found}
    return {part: {"from": when} | numbers for part, numbers in found.get("parts", {}).items()}


def circumstances(commit: str | None) -> dict[str, Any]:
    """Commit, number of changed source files, date and machine of a measurement."""
    changed = None if commit else len(_output("status", "--porcelain", "--", "src", "benchmarks/*.py").splitlines())
    return {
        "commit": commit or _output("rev-parse", "--short", "HEAD"),
        "changed_files": changed,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"arch": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
    }


def _output(*words: str) -> str:
    try:
        return git(*words).stdout.strip()
    except OSError:
        return ""


def git(*words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command of git in the repository. Raises OSError without git."""
    return subprocess.run(["git", *words], cwd=RESULTS.parents[1], capture_output=True, text=True, check=False)
