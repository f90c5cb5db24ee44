"""Local copies of inputs that can be read only once: a file at an http:// or https:// address, and standard input."""

import http.client
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..core.errors import SpecError
from ..core.safe_text import public_url

_CONNECT_TIMEOUT = 60.0
"""Seconds without a byte from the server."""
_CHUNK_BYTES = 1024 * 1024


class LocalCopy:
    """Temporary file that is deleted with this object or at the end of the program."""

    def __init__(self, name: str, file_name: str = "") -> None:
        """`name`: source of the bytes, for messages. `file_name`: the original file, whose suffix gives the format;
        empty if there is none."""
        self.name = name
        self.file_name = file_name
        handle, path = tempfile.mkstemp(prefix="batch-agent-")
        os.close(handle)
        self.path = Path(path)
        weakref.finalize(self, self.path.unlink, missing_ok=True)


def download(url: str, notify: Callable[[str], None]) -> LocalCopy:
    """Downloads a file once. `notify` is called with its size. Raises SpecError."""
    parts = urlsplit(url)
    name = public_url(url)
    copy = LocalCopy(name, unquote(parts.path.rpartition("/")[2]))
    try:
        size = _copy(url, copy)
    except urllib.error.HTTPError as error:
        error.close()
        raise SpecError(f"{name!r} cannot be downloaded: the server answered {error.code} {error.reason}.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SpecError(f"{name!r} cannot be downloaded: {str(reason) or type(reason).__name__}.") from error
    notify(f"Downloaded {name} ({format_bytes(size)}).")
    return copy


def read_stdin() -> LocalCopy:
    """Reads standard input to its end. Raises SpecError if it is a terminal or empty."""
    if sys.stdin is None or sys.stdin.isatty():
        raise SpecError(
            "The inputs are standard input, but nothing is piped into it: cat texts.jsonl | batch-agent run - ..., or "
            "give a file."
        )
    copy = LocalCopy("standard input")
    with copy.path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK_BYTES)
    return copy


def format_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _copy(url: str, copy: LocalCopy) -> int:
    """Copies the body to the file and returns its size. Raises SpecError if it is cut short."""
    with urllib.request.urlopen(url, timeout=_CONNECT_TIMEOUT) as response, copy.path.open("wb") as file:  # noqa: S310
        shutil.copyfileobj(response, file, _CHUNK_BYTES)
        size, expected = file.tell(), response.headers.get("Content-Length")
    if expected is not None and expected.isdecimal() and size != int(expected):
        raise SpecError(f"{copy.name!r} was cut short: {size:,} of {int(expected):,} bytes arrived. Try again.")
    return size
