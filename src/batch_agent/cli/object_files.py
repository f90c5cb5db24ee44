"""Files and checkpoints that a command line names, on this machine or in an object store."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..core.fast_dataclass import dataclass
from ..core.task_fields import is_object_url
from ..data.inputs import print_notice
from ..observe.report.html import REPORT


def _as_location(_: Any, tokens: Any) -> Path | str:
    value = str(tokens[0].value)
    return value if is_object_url(value) else Path(value)


Location = Annotated[Path | str, Parameter(converter=_as_location)]
"""A path, or the URL of an object store as a string."""
OptionalLocation = Annotated[Path | str | None, Parameter(converter=_as_location)]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Checkpoint of a run that this process drives."""

    path: Path
    name: str
    """As the user gave it, for messages."""
    guard: AbstractAsyncContextManager[None]
    """Ends the run if another process takes its checkpoint."""

    def report_lines(self) -> list[str]:
        """As `report_lines`. In an object store, the report is uploaded at the end."""
        return report_lines(self.path, self.name)


def report_lines(folder: Path, name: str) -> list[str]:
    """A line with the path of the report, if there is one. `name`: the directory as the user gave it."""
    return [f"Report: {name.rstrip('/')}/{REPORT}"] if (folder / REPORT).exists() else []


@contextmanager
def open_run_folder(checkpoint: Path | str) -> Iterator[RunFolder]:
    """The checkpoint of a run; of one in an object store, the copy on this machine, which is uploaded meanwhile. Raises
    SpecError and StoreError."""
    if isinstance(checkpoint, Path):
        yield RunFolder(checkpoint, str(checkpoint), nullcontext())
        return
    from ..objects.remote_checkpoint import RemoteCheckpoint  # only for object stores

    with RemoteCheckpoint(checkpoint, print_notice, "--checkpoint") as copy:
        yield RunFolder(copy.directory, checkpoint, copy.guard())


def folder_here(checkpoint: Path | str) -> Path:
    """The checkpoint of a live run on this machine; of one in an object store, the copy here."""
    if isinstance(checkpoint, Path):
        return checkpoint
    from ..objects.remote_checkpoint import local_directory

    return local_directory(checkpoint)


@contextmanager
def open_to_read(checkpoint: Path | str) -> Iterator[Path]:
    """The checkpoint, or that of a stage; of one in an object store, a temporary copy of what was uploaded last. Raises
    SpecError and StoreError."""
    if isinstance(checkpoint, Path):
        yield checkpoint
        return
    from ..objects.remote_checkpoint import download_checkpoint

    with tempfile.TemporaryDirectory(prefix="batch-agent-") as folder:
        yield download_checkpoint(checkpoint, Path(folder))


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
