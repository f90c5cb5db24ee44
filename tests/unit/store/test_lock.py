"""A checkpoint is used by one process at a time, and free when that one is dead, whatever it leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batch_agent import StoreError
from batch_agent.store.lock import DirectoryLock

HOLDER = """
import multiprocessing, os, sys, time
from pathlib import Path
from batch_agent.store.lock import DirectoryLock

lock = DirectoryLock(Path(sys.argv[1]))
lock.take()

def outlive():
    print(os.getpid(), flush=True)
    time.sleep(600)

if sys.argv[2] == "fork":
    if os.fork() == 0:
        outlive()
else:
    multiprocessing.get_context("fork").Process(target=outlive).start()
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_forked_child_that_outlives_a_killed_run_does_not_hold_its_checkpoint(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(StoreError, match="Another run is using"):
                DirectoryLock(tmp_path).take()
            holder.kill()
            holder.wait()
            os.kill(child, 0)  # it is still there
            lock = DirectoryLock(tmp_path)
            lock.take()
            lock.release()
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_ends_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.take()
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(StoreError, match="Another run is using"):
        DirectoryLock(tmp_path).take()
    lock.release()
    again = DirectoryLock(tmp_path)
    again.take()
    again.release()
