"""Files named on a command line, on this machine or in an object store."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..core.task_fields import is_object_url


def _as_location(_: Any, tokens: Any) -> Path | str:
    value = str(tokens[0].value)
    return value if is_object_url(value) else Path(value)


Location = Annotated[Path | str, Parameter(converter=_as_location)]
"""A path, or the URL of an object store as a string."""
OptionalLocation = Annotated[Path | str | None, Parameter(converter=_as_location)]


@contextmanager
def open_to_write(out: Path | str | None) -> Iterator[Path | None]:
    """The file to write; for an object, a temporary file that is uploaded when the block ends without an exception.
    Raises SpecError."""
    if not isinstance(out, str):
        yield out
        return
    from ..objects.store_client import StoreClient

    store = StoreClient(out, "--out")
    with tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
        path = Path(folder, out.rpartition("/")[2] or "out")
        yield path
        store.upload(path, out)
