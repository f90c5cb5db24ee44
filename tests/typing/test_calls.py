"""The public API as type checkers see it: mypy and pyright report what `calls.py` marks, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = Path(__file__).with_name("calls.py")


def checked(command: list[str]) -> str:
    """What a type checker says, or nothing if it found all marked errors and no others."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_reports_the_wrong_calls_and_no_others() -> None:
    assert checked(["mypy", str(CALLS)]) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_reports_the_wrong_calls_and_no_others(tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    rules = {
        "include": [str(CALLS)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": "error",
        "pythonVersion": "3.11",
    }
    config.write_text(json.dumps(rules))
    assert checked(["basedpyright", "--project", str(config), "--pythonpath", sys.executable]) == ""
