"""batch-agent ctl."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ...core.errors import SpecError
from ...core.events import Steered
from ...core.options import Rows
from ...core.options.control_request import ControlRequest
from ...core.safe_text import safe_text
from ...data import read_inputs
from ...run.control import inputs_to_add
from ...run.control_socket import steer
from ..run_address import RunLocation, find_live_run


def ctl(
    folder: RunLocation,
    *,
    run: str | None = None,
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
        Checkpoint directory of the run, or the URL of a Redis server. By default, results.jsonl.checkpoint for
        results.jsonl.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    max_inflight
        The most concurrent requests, of all workers together. The run finds its limit below that.
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
    request = ControlRequest(
        max_inflight,
        max_usd,
        deadline,
        True if pause else False if resume else None,
        tuple(cancel or ()),
        () if add is None else inputs_to_add(read_inputs(add, Rows(input_format=input_format, encoding=encoding))),
    )
    for change in asyncio.run(_steer(folder, run, request)):
        print(safe_text(str(change)))


async def _steer(location: Path | str, run: str | None, request: ControlRequest) -> list[Steered]:
    found = find_live_run(location, run)
    if isinstance(found, Path):
        return await steer(found, request)
    from ...cluster.redis.run_control import steer_shared  # needs an extra

    return await steer_shared(found.store, found.name, request)
