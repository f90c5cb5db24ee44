"""batch-agent init."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import orjson

from ...core.errors import SpecError

_HERE = Path(".")
_FILES = {
    "batch.toml": "task, model and options",
    "inputs.jsonl": "inputs, one per line",
    "schema.py": "schema of the answers",
    "tools.py": "tools of the agents",
    "README.md": "how to run and adapt it",
    ".gitignore": "excludes results from git",
}


def init(folder: Path = _HERE, *, backend: str = "local://", model: str | None = None, force: bool = False) -> int:
    """Writes the starter project. Raises SpecError for existing files, and for a directory that cannot be written.

    Parameters
    ----------
    folder
        Directory of the project. Created if it does not exist.
    backend
        Backend to write to batch.toml, as for run.
    model
        Model name to write to batch.toml, as for run.
    force
        Overwrite existing files.
    """
    existing = [name for name in _FILES if (folder / name).exists()]
    if existing and not force:
        raise SpecError(f"{str(folder)!r} already contains {', '.join(existing)}. To overwrite, add --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (folder / name).write_text(_text(name, backend, model), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{str(folder)!r} cannot be written: {error.strerror}.") from error
    _print_next_steps(folder)
    return 0


def _text(name: str, backend: str, model: str | None) -> str:
    text = (files("batch_agent.cli") / "starter" / name.lstrip(".")).read_text(encoding="utf-8")
    return _for_backend(text, backend, model) if name == "batch.toml" else text


def _for_backend(config: str, backend: str, model: str | None) -> str:
    settings = {"backend": backend} | ({"model": model} if model else {})
    return "\n".join(_line(line, settings) for line in config.splitlines()) + "\n"


def _line(line: str, settings: Mapping[str, str]) -> str:
    """A line of batch.toml. Settings for the embedded model are commented out if another backend is used."""
    key = line.removeprefix("# ").partition(" = ")[0]
    if key in settings:
        return f"{key} = {orjson.dumps(settings[key]).decode()}"
    is_for_local = key in ("temperature", "max_tokens", "max_turns")
    return f"# {line}" if is_for_local and not settings["backend"].startswith("local://") else line


def _print_next_steps(folder: Path) -> None:
    print(f"Created project in {folder.absolute()}:")
    for name, what in _FILES.items():
        print(f"  {name:<14}{what}")
    print("To run it:")
    if folder.absolute() != Path.cwd():
        print(f"  cd {folder}")
    print("  batch-agent run")
