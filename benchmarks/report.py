"""What every benchmark writes down: its numbers, the commit and the machine."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write(name: str, numbers: dict[str, Any]) -> Path:
    """Keeps `numbers` as benchmarks/results/NAME.json and returns its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, **_circumstances(), **numbers}, indent=2) + "\n")
    return path


def _circumstances() -> dict[str, Any]:
    return {
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_files": len(_git("status", "--porcelain", "--", "src", "benchmarks/*.py").splitlines()),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"arch": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
