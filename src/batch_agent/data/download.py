"""Copies of inputs that can be read only once: a file at an http:// or https:// address, and standard input."""

import http.client
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import public_url

_CONNECT_TIMEOUT = 60.0
"""Seconds without a byte from the server."""
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """Temporary file, which is deleted when this object is."""

    name: str
    """Where the bytes came from, for messages; without passwords and tokens."""
    file_name: str
    """Name of the original file, whose suffix tells the format; empty if there is none."""
    file: IO[bytes]

    @property
    def path(self) -> Path:
        return Path(self.file.name)


def download(url: str, notify: Callable[[str], None]) -> LocalCopy:
    """Downloads a file once. `notify` is called with its size. Raises SpecError."""
    parts = urlsplit(url)
    name = public_url(url)
    file = tempfile.NamedTemporaryFile(prefix="batch-agent-")  # noqa: SIM115 - kept open as long as it is needed
    try:
        size = _copy(url, name, file)
    except urllib.error.HTTPError as error:
        raise SpecError(f"{name!r} cannot be downloaded: the server answered {error.code} {error.reason}.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SpecError(f"{name!r} cannot be downloaded: {str(reason) or type(reason).__name__}.") from error
    notify(f"Downloaded {name} ({format_bytes(size)}).")
    return LocalCopy(name, unquote(parts.path.rpartition("/")[2]), file)


def read_stdin() -> LocalCopy:
    """Standard input, read to its end. Raises SpecError if it is a terminal, or empty."""
    if sys.stdin is None or sys.stdin.isatty():
        raise SpecError(
            "The inputs are standard input, but nothing is piped into it: cat texts.jsonl | batch-agent run - ..., or "
            "give a file."
        )
    file = tempfile.NamedTemporaryFile(prefix="batch-agent-")  # noqa: SIM115 - kept open as long as it is needed
    shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK_BYTES)
    file.flush()
    return LocalCopy("standard input", "", file)


def format_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _copy(url: str, name: str, file: IO[bytes]) -> int:
    """Copies the body to the file and returns its size. A body that is cut short is an error."""
    with urllib.request.urlopen(url, timeout=_CONNECT_TIMEOUT) as response:  # noqa: S310 - only http and https
        shutil.copyfileobj(response, file, _CHUNK_BYTES)
        expected = response.headers.get("Content-Length")
    file.flush()
    size = file.tell()
    if expected is not None and expected.isdecimal() and size != int(expected):
        raise SpecError(f"{name!r} was cut short: {size:,} of {int(expected):,} bytes arrived. Try again.")
    return size
