"""batch-agent resume."""

import os
from pathlib import Path

from ..core.errors import SpecError
from ..store.reader import CheckpointReader
from .asked import asked_again
from .kept_command import read_command
from .reducing import reduced_again
from .run import run
from .shown import Dashboard
from .stages import checkpoints_in
from .watchers import Watching

_UNWATCHED = Watching()


def resume(
    folder: Path, *, backend: str | None = None, dashboard: Dashboard = None, watching: Watching = _UNWATCHED
) -> int:
    """Gives the command that made the checkpoint again, and returns its exit status.

    Parameters
    ----------
    folder
        The run's checkpoint: results.jsonl.checkpoint for results.jsonl, if nothing else was said.
    backend
        Where the server is now, if it moved. Needed where its URL held a password: none is kept.
    """
    folder = folder.absolute()
    for each in checkpoints_in(folder):
        CheckpointReader(each).close()
    place, options = read_command(folder)
    if backend is not None:
        options["backend"] = backend
    if "backend" not in options:
        raise SpecError("The backend's URL held a password, which is not kept. Say it again: --backend URL.")
    try:
        os.chdir(place)
    except OSError as error:
        raise SpecError(f"The run was started in {str(place)!r}, which cannot be entered: {error.strerror}.") from error
    asked, others = asked_again(options)
    reducing, rest = reduced_again(others)
    return run(asked, reducing=reducing, **rest, checkpoint=folder, dashboard=dashboard, watching=watching)
