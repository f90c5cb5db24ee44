"""The peak of a benchmark's process is its own, and not that of the process that started it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_A_WORKER = "from benchmarks.cluster.worker_process import _rss_mb; print(_rss_mb())"


def test_the_peak_of_a_worker_is_without_what_its_parent_had() -> None:
    ballast = bytearray(400 * 2**20)
    command = [sys.executable, "-c", OF_A_WORKER]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(ballast) / 2**20 > float(shown) > 1
