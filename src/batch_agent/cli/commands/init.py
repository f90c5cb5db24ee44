"""batch-agent init."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import orjson

from ...core.errors import SpecError

_HERE = Path(".")
_MADE = {
    "batch.toml": "what is asked, of which model",
    "inputs.jsonl": "one input per line",
    "schema.py": "what each answer must be",
    "tools.py": "what agents may call",
    "README.md": "what to do with it",
    ".gitignore": "keeps results out of git",
}


def init(folder: Path = _HERE, *, backend: str = "local://", model: str | None = None, force: bool = False) -> int:
    """Writes the files of the starter. Raises SpecError for a place that cannot be written, and for files in the way.

    Parameters
    ----------
    folder
        Where to make it; made if it is not there.
    backend
        Who answers, as for run: it is written into batch.toml.
    model
        The model's name, as for run: it is written into batch.toml.
    force
        Overwrite files that are there already.
    """
    in_the_way = [name for name in _MADE if (folder / name).exists()]
    if in_the_way and not force:
        raise SpecError(f"{', '.join(in_the_way)} would be overwritten in {str(folder)!r}. If that is meant: --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _MADE:
            (folder / name).write_text(_text(name, backend, model), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{str(folder)!r} cannot be written: {error.strerror}.") from error
    _say_what_next(folder)
    return 0


def _text(name: str, backend: str, model: str | None) -> str:
    text = (files("batch_agent.cli") / "starter" / name.lstrip(".")).read_text(encoding="utf-8")
    return _for_backend(text, backend, model) if name == "batch.toml" else text


def _for_backend(config: str, backend: str, model: str | None) -> str:
    said = {"backend": backend} | ({"model": model} if model else {})
    return "\n".join(_line(line, said) for line in config.splitlines()) + "\n"


def _line(line: str, said: Mapping[str, str]) -> str:
    """What suits the embedded model is left to the defaults of others: some of them refuse it."""
    key = line.removeprefix("# ").partition(" = ")[0]
    if key in said:
        return f"{key} = {orjson.dumps(said[key]).decode()}"
    is_for_local = key in ("temperature", "max_tokens", "max_turns")
    return f"# {line}" if is_for_local and not said["backend"].startswith("local://") else line


def _say_what_next(folder: Path) -> None:
    print(f"Made in {folder.absolute()}:")
    for name, what in _MADE.items():
        print(f"  {name:<14}{what}")
    print("Now type:")
    if folder.absolute() != Path.cwd():
        print(f"  cd {folder}")
    print("  batch-agent run")
