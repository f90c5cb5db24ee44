"""batch-agent preview."""

from dataclasses import replace
from typing import Annotated

import orjson
from cyclopts import Parameter

from ...api import BatchAgent
from ..options.command_options import NAMES, CommandOptions
from ..signals import interruptible
from ..stdout import write_stdout
from ..usage_errors import with_flags


def preview(
    options: CommandOptions,
    *,
    count: int = 3,
    exact: bool = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Prints the first requests of a run.

    Parameters
    ----------
    count
        Number of inputs to show.
    exact
        Connect to the backend first, as a run does.
    json
        Print one JSON object.
    """
    found = interruptible(BatchAgent.preview(count=count, exact=exact, **options.to_kwargs()))
    found = replace(found, notes=tuple(with_flags(note, NAMES) for note in found.notes))
    text = orjson.dumps(found.to_dict(), option=orjson.OPT_INDENT_2) if json else str(found).encode(errors="replace")
    write_stdout([text, b"\n"])
    return 0
