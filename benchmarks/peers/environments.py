"""An environment for each peer, beside those of the engines: what peers need contradicts each other, and us."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.engines.layout import engines_root

ROOT = Path(__file__).parents[2]
PINS: dict[str, list[str]] = json.loads(Path(__file__).with_name("pins.json").read_text())
AURORA = "BATCH_AGENT_AURORA"
_NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


class NotThere(Exception):
    """A peer that cannot run here; the words say why."""


def python_of(peer: str) -> Path:
    """The interpreter that has what a peer needs, which is installed where it is not there yet. Raises NotThere."""
    if peer not in PINS:
        return Path(sys.executable)
    if peer == "aurora_swarm":
        aurora_folder()
    folder = engines_root() / "peers" / peer
    stamp, digest = folder / ".ready", _digest(peer)
    if not (stamp.is_file() and stamp.read_text() == digest):
        print(f"{peer}: installing into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder, PINS[peer])
        stamp.write_text(digest)
    return folder / "bin" / "python"


def aurora_folder() -> Path:
    """Where Aurora Swarm's repository is: it is not on PyPI. Raises NotThere."""
    folder = Path(os.environ.get(AURORA, "").removeprefix("file://"))
    if not (folder / "aurora_swarm").is_dir():
        raise NotThere(f"Aurora Swarm is not on PyPI: set {AURORA}=file://FOLDER to a clone of it")
    return folder


def words_of(peer: str) -> dict[str, str]:
    """The environment variables of a peer's process: nothing of this one's paths, and nobody is told of the runs."""
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    paths = {"PYTHONPATH": str(aurora_folder())} if peer == "aurora_swarm" else {}
    return {**ours, **paths, **QUIET}


QUIET = {
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "OTEL_SDK_DISABLED": "true",
    "INSPECT_DISPLAY": "none",
    "OPENAI_API_KEY": "none",
}


def _digest(peer: str) -> str:
    ours = (ROOT / "pyproject.toml").read_text() if "-e" in PINS[peer] else ""
    known = json.dumps([PINS[peer], sys.version_info[:2], ours])
    return hashlib.sha256(known.encode()).hexdigest()


def _install(folder: Path, wanted: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    index = os.environ.get("PIP_INDEX_URL")
    words = {**os.environ, "UV_DEFAULT_INDEX": index} if index else dict(os.environ)
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python), *wanted]
    if subprocess.run(uv, env=words, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode:
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
        subprocess.run(pip, cwd=ROOT, check=True)
