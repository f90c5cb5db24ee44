"""A checkpoint and the rules that its agents followed, as the commands read them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..core.checks import at_least
from ..core.errors import StoreError
from ..core.rules import Rules
from ..observe.recorded import recorded_rules
from ..store.reader import CheckpointReader
from .kept_command import kept_elsewhere, read_command
from .load import load_schema


@contextmanager
def open_recorded(
    folder: Path, schema: str | None, max_retries: int | None
) -> Iterator[tuple[CheckpointReader, Rules]]:
    """Raises StoreError for what is no checkpoint, SpecError for a schema that is none."""
    if (run := kept_elsewhere(folder)) is not None:
        raise StoreError(
            f"The progress of the run in {str(folder)!r} is on a server, as that of run {run!r}: it cannot be read "
            "from there. What its agents answered is in the results; what they did, in the report."
        )
    if max_retries is not None:
        at_least("--max-retries", max_retries, 0)
    with CheckpointReader(folder) as reader:
        own: Any = load_schema(schema) if schema else None
        yield reader, recorded_rules(reader.plan(), own, _max_retries(folder) if max_retries is None else max_retries)


def _max_retries(folder: Path) -> int | None:
    """As the command said. The command of a stage is that of its run."""
    for place in (folder, folder.absolute().parent):
        with suppress(StoreError):  # made from Python
            retries: int = read_command(place)[1]["max_retries"]
            return retries
    return None
