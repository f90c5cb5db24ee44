"""How a run that was started from the command line ends."""

import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import RunStopped
from ..core.quick import dataclass
from ..core.safe_text import safe_text
from .signals import Interrupted, interruptible

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stopped:
    """Before its end."""

    status: int
    why: str


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T | Stopped:
    """What it gives, unless somebody or something stops it. Other errors are raised."""
    try:
        return interruptible(work)
    except Interrupted as error:
        return Stopped(error.status, "Stopped by SIGTERM." if error.by_sigterm else "Stopped.")
    except RunStopped as error:
        return Stopped(2, f"Stopped. {error}")


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
