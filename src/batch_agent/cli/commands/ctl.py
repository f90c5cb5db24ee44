"""batch-agent ctl."""

import asyncio
from typing import Annotated, Literal

from cyclopts import Parameter

from ...core.errors import SpecError
from ...core.options import Rows
from ...core.safe_text import safe_text
from ...data import read_inputs
from ...run.control import ControlRequest, inputs_to_add
from ...run.control_socket import steer
from ..object_files import RunLocation, folder_here, is_server_url
from ..saved_command import remote_run_id


def ctl(
    folder: RunLocation,
    *,
    max_inflight: int | None = None,
    max_usd: float | None = None,
    deadline: float | None = None,
    pause: bool = False,
    resume: bool = False,
    cancel: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    add: str | None = None,
    input_format: Literal["jsonl", "json", "csv", "tsv", "parquet", "lines"] | None = None,
    encoding: str | None = None,
) -> None:
    """Changes a live run: everything that is given, or nothing. Raises SpecError and StoreError.

    Parameters
    ----------
    folder
        Checkpoint directory of the run. By default, results.jsonl.checkpoint for results.jsonl.
    max_inflight
        The most concurrent requests. The run finds its limit below that.
    max_usd
        Budget in dollars, of a run that was started with one. If that is spent already, the run ends.
    deadline
        Time limit of the whole run, in seconds from its start.
    pause
        Start no more turns. Those in flight are finished.
    resume
        Go on after a pause.
    cancel
        Agents to cancel: key, index, or beginning of a key.
    add
        File of further inputs, read as `batch-agent run` reads inputs.
    input_format
        Format of that file, if not that of its suffix.
    encoding
        Encoding of that file, if not UTF-8.
    """
    if pause and resume:
        raise SpecError("Choose one of --pause and --resume.")
    here = None if is_server_url(folder) else folder_here(folder)
    if here is None or (name := remote_run_id(here)) is not None:
        raise SpecError(
            f"{'A run on a server' if here is None else f'The run {name!r}'} is distributed, and cannot be changed "
            "while it is running. Stop the process that submitted it with Ctrl-C, and run it again with other values: "
            "its workers and their results stay."
        )
    request = ControlRequest(
        max_inflight,
        max_usd,
        deadline,
        True if pause else False if resume else None,
        tuple(cancel or ()),
        () if add is None else inputs_to_add(read_inputs(add, Rows(input_format=input_format, encoding=encoding))),
    )
    for change in asyncio.run(steer(here, request)):
        print(safe_text(str(change)))
