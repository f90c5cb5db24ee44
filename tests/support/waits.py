"""Waits of tests for other processes and threads, with an end."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(is_so: Callable[[], bool], what: str = "it") -> None:
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} never was")


def wait_for_rows(path: Path, least: int) -> None:
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= least, f"{path} with {least} rows")
