"""The quarantine of tests: a failure is shown and does not fail the run; an entry that names no test does."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.quarantine import Quarantine

ROOT = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
from tests.support.quarantine import Quarantine

def pytest_configure(config):
    config.pluginmanager.register(Quarantine(Path("quarantine.toml"), Path.cwd()))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_now_and_then(number):
    assert number == 1, "the cause"

@pytest.fixture
def leaking():
    yield
    raise OSError("left behind")

def test_that_leaks(leaking):
    pass

def test_sound():
    assert SOUND
"""
ENTRY = '[[test]]\nid = "test_it.py::{}"\nreason = "a race"\ndate = 2026-11-18\n'


STRAY = '[tool.pytest.ini_options]\npythonpath = "."\n'
"""Settings in a folder above, such as the temporary folder of the system, which pytest would take."""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "is_sound"), [("1", True), ("0", False)])
def test_a_quarantined_test_runs_and_its_failure_is_shown(tmp_path: Path, workers: str, is_sound: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(STRAY)
    (tmp_path / "tests.py").write_text("raise RuntimeError('of somebody else')")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS.replace("SOUND", str(is_sound)))
    (folder / "quarantine.toml").write_text(ENTRY.format("test_now_and_then") + ENTRY.format("test_that_leaks"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers, "--rootdir", "."]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if is_sound else 1), done.stdout
    shown = done.stdout.partition("quarantined tests that failed")[2]
    assert "test_it.py::test_now_and_then[2] (call), quarantined on 2026-11-18: a race" in shown
    assert "the cause" in shown
    assert "test_it.py::test_that_leaks (teardown)" in shown
    assert "test_now_and_then[1]" not in shown


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.format("test_gone"),
        ENTRY.replace("test_it", "test_gone").format("test_now_and_then"),
        '[[test]]\nid = "test_it.py::test_now_and_then"\nreason = ""\ndate = 2026-11-18\n',
        '[[test]]\nid = "test_it.py::test_now_and_then"\n',
        '[[test]]\nid = "test_it.py::test_now_and_then"\nreason = "a race"\ndate = "soon"\n',
    ],
)
def test_an_entry_that_names_no_test_or_gives_no_reason_fails_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "quarantine.toml").write_text(text)
    with pytest.raises(pytest.UsageError, match=r"quarantine\.toml"):
        Quarantine(tmp_path / "quarantine.toml", tmp_path)
