"""Detection of interactive sessions, where runs started from Python show progress.

The views are imported only when needed: every run imports this module."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from ...lazy_imports import lazy_modules

with lazy_modules(globals()):
    from . import notebook, progress

if TYPE_CHECKING:
    from ..text.run_outputs import RunOutputs
    from .progress import Progress


def progress_if_interactive(
    stream: TextIO, dashboard: bool | None = None, outputs: "Callable[[], RunOutputs] | None" = None
) -> "Progress | None":
    """Progress for a run started from Python; None unless the session is interactive or `dashboard` is True. `outputs`:
    returns the `outputs` of `progress_for`; called only if progress is shown."""
    is_shown = stream.isatty() or _is_notebook() if dashboard is None else dashboard
    if not is_shown:
        return None
    return progress.progress_for(stream, outputs=None if outputs is None else outputs())


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:  # the kernel of a notebook has imported it
        return False
    return notebook.is_notebook()
