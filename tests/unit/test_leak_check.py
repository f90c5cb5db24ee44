"""The check of all tests for what they leave behind."""

import subprocess
import sys
from pathlib import Path

import pytest

_LEAKING = """
import asyncio, subprocess, sys, threading
import pytest

started = []

def test_a_thread():
    started.append(threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True))
    started[0].start()

def test_a_process():
    started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_a_task():
    async def main():
        started.append(asyncio.ensure_future(asyncio.sleep(60)))
    asyncio.run(main())

@pytest.fixture(scope="module")
def server():
    thread = threading.Thread(target=threading.Event().wait, name="server", daemon=True)
    thread.start()
    return thread

def test_a_thread_of_a_module(server):
    assert server.is_alive()

def test_the_end():
    started[1].kill()
    started[1].wait()
"""
_CONFTEST = """
from tests.support import leaks

leaks._GRACE_SECONDS = 0.1

def pytest_configure(config):
    config.pluginmanager.register(leaks.LeakCheck())
"""


@pytest.mark.slow
def test_a_thread_a_process_and_a_task_that_are_left_fail_their_test(tmp_path: Path) -> None:
    (tmp_path / "test_leaking.py").write_text(_LEAKING)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(__file__).parents[2]}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert "5 passed, 3 errors" in ended.stdout, ended.stdout
    for left in ("thread 'forgotten'", "process ", "task <Task"):
        assert f"The test leaves behind: {left}" in ended.stdout
