"""The command that made a checkpoint, kept beside it, so that it can be given again from anywhere."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from ..core.errors import PlanMismatch, SpecError, StoreError
from ..core.events import Event, InStage, RunStarted
from ..files import replacing
from ..observe.live.progress import Progress

_FORMAT = 3
_IN_QUERY = r"[?&][^=&]*(?:key|token|secret|sig|password)[^=&]*="
_SECRETS = {
    "backend": re.compile(rf"//[^/@]*@|{_IN_QUERY}", re.IGNORECASE),
    "inputs": re.compile(rf"//[^@]*:[^@]*@|{_IN_QUERY}", re.IGNORECASE),  # of a database: a user alone is no secret
    "store": re.compile(rf"//[^@]*@|{_IN_QUERY}", re.IGNORECASE),
}


class KeepsCommand:
    """Progress that also keeps the command, as soon as the run has started: one that was refused, because it asks
    another question than the checkpoint answers, does not take the place of the one that made it."""

    def __init__(self, progress: Progress, folder: Path, options: Mapping[str, Any]) -> None:
        self._progress = progress
        self._folder = folder
        self._command = _command(options)

    def emit(self, event: Event) -> None:
        if isinstance(event.event if isinstance(event, InStage) else event, RunStarted):
            with suppress(SpecError), replacing(_file(self._folder)) as file:  # without it the run is as good
                file.write(orjson.dumps(self._command, option=orjson.OPT_INDENT_2))
        self._progress.emit(event)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)


def read_command(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder where the command was given, and its options. Raises StoreError where none was kept."""
    try:
        command = orjson.loads(_file(folder).read_bytes())
    except FileNotFoundError:
        if _file(folder.parent).exists():
            raise StoreError(f"{str(folder)!r} is one stage of the run in {str(folder.parent)!r}: name that.") from None
        raise StoreError(
            f"{str(folder)!r} has no command.json: its run was not started by `batch-agent run`. If Python code made "
            f"this checkpoint, run the same code again: with checkpoint_dir={str(folder)!r} it goes on from there."
        ) from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise StoreError(f"{str(_file(folder))!r} cannot be read: {error}.") from error
    if command["format"] > _FORMAT:
        raise StoreError(f"{str(_file(folder))!r} was written by a newer version of batch-agent. Upgrade batch-agent.")
    paths = {name: Path(path) for name, path in command["paths"].items()}
    return Path(command["working_directory"]), {**command["options"], **paths}


def kept_elsewhere(folder: Path) -> str | None:
    """The name of a run whose progress is on a server, and not in its folder."""
    with suppress(StoreError):
        name: str | None = read_command(folder)[1].get("run_id")
        return name
    return None


def check_kept_alike(folder: Path, *, is_shared: bool) -> None:
    """Raises PlanMismatch where the progress of the run that the folder belongs to is not where this one keeps its own:
    everything would be asked, and paid for, again."""
    if not _file(folder).exists():
        return
    name = kept_elsewhere(folder)
    if (name is not None) == is_shared:
        return
    was = f"is on a server, as that of run {name!r}" if name is not None else "is there, and not on a server"
    say = "Say --store again" if name is not None else "Leave out --store"
    raise PlanMismatch(
        f"The progress of the run in {str(folder)!r} {was}. {say} to go on with it, or give this run another --out, or "
        "ask everything anew: with --plan-changed rerun, or with --fresh."
    )


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without the URLs that hold one."""
    return {
        name: value
        for name, value in options.items()
        if not (name in _SECRETS and isinstance(value, str) and _SECRETS[name].search(value))
    }


def _command(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = without_secrets(options)
    for name in ("schema", "reduce_schema"):
        if (kept[name] or "").endswith(".json"):
            kept[name] = str(Path(kept[name]).absolute())
    paths = {name: str(value.absolute()) for name, value in kept.items() if isinstance(value, Path)}
    return {
        "format": _FORMAT,
        "working_directory": str(Path.cwd()),
        "options": {name: value for name, value in kept.items() if name not in paths},
        "paths": paths,
    }


def _file(folder: Path) -> Path:
    return folder / "command.json"
