"""How a run that was started from the command line ends."""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import RunStopped
from ..core.quick import dataclass
from ..core.safe_text import safe_text
from ..tasks.running import run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stopped:
    """Before its end."""

    status: int
    why: str


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T | Stopped:
    """What it gives, unless somebody or something stops it. Other errors are raised.

    SIGTERM stops it as Ctrl-C does, but for the status; a second one ends the process at once."""
    try:
        return run(_until_terminated(work))
    except KeyboardInterrupt:
        return Stopped(130, "Stopped.")
    except _Terminated:
        return Stopped(143, "Stopped by SIGTERM.")
    except RunStopped as error:
        return Stopped(2, f"Stopped. {error}")


class _Terminated(Exception):
    """By SIGTERM."""


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    loop, task, is_told = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def stop(*_: object) -> None:
        nonlocal is_told
        is_told = True
        signal.signal(signal.SIGTERM, before)
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return await work
    except asyncio.CancelledError:
        if is_told:
            raise _Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def say(lines: Iterable[str]) -> None:
    for line in lines:
        print(safe_text(line), file=sys.stderr)


def exit_status(stopped: Stopped | None, folder: Path, *, any_failed: bool) -> int:
    """After saying how to go on."""
    if stopped is not None:
        say([stopped.why, f"What is done is kept: run the same command again to go on, or batch-agent resume {folder}"])
        return stopped.status
    if any_failed:
        say(["Run the same command again to try the failed ones once more."])
    return 1 if any_failed else 0
