"""Whether anybody is there to see a run as it goes. What would show it is imported only then."""

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .progress import Progress


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's own, VS Code's, Colab's."""
    ipython = sys.modules.get("IPython")  # it is running, or this is none
    shell = None if ipython is None else ipython.get_ipython()
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


def progress_if_seen(stream: TextIO, wanted: bool | None = None) -> "Progress | None":
    """For a run that was started from Python: nothing, unless somebody is there to see it or it is wanted."""
    is_seen = is_notebook() or stream.isatty() if wanted is None else wanted
    if not is_seen:
        return None
    from .progress import progress_for

    return progress_for(stream)
