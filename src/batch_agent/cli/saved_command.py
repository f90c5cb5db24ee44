"""The command that made a checkpoint, stored and signed in it so that `batch-agent resume` can run it again.

A checkpoint may come from another user, and its command names modules to import, files to read and write, and a server
that receives an API key. `resume` therefore accepts only commands that this user's own `batch-agent run` has signed,
unless --trust is given."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from pydantic import BaseModel, ValidationError

from ..atomic_file import atomic_write
from ..backends.address import credential_for
from ..core.errors import PlanMismatch, SpecError, StoreError
from ..core.events import Event, RunStarted, StageEvent
from ..core.options.backend_settings import settings_of
from ..observe.live.progress import Progress
from .import_by_name import is_function
from .options.command_options import NOT_STORED
from .options.json_values import named_backend, parse_backends
from .signature import is_own, sign

_FORMAT = 3
_IN_QUERY = r"[?&][^=&]*(?:key|token|secret|sig|password)[^=&]*="
_SECRETS = {
    "backend": re.compile(rf"//[^/@]*@|{_IN_QUERY}", re.IGNORECASE),
    "inputs": re.compile(rf"//[^@]*:[^@]*@|{_IN_QUERY}", re.IGNORECASE),  # a user name alone is not a secret
    "store": re.compile(rf"//[^@]*@|{_IN_QUERY}", re.IGNORECASE),
    "mcp": re.compile(r"//[^/@\s]*@|(?:key|token|secret|sig|password|auth)[\w-]*[= ]", re.IGNORECASE),
}


class CommandSaver:
    """Progress that also saves the command once the run has started. A command that is rejected because its plan
    differs from the checkpoint's must not replace the saved one."""

    def __init__(self, progress: Progress, folder: Path, options: Mapping[str, Any]) -> None:
        self._progress = progress
        self._folder = folder
        self._command = command_json(options)

    def emit(self, event: Event) -> None:
        if isinstance(event.event if isinstance(event, StageEvent) else event, RunStarted):
            with (
                suppress(SpecError),
                atomic_write(_file(self._folder), is_private=True) as file,
            ):  # the run works without a saved command
                file.write(self._command)
        self._progress.emit(event)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)


class SavedCommand(BaseModel):
    """Content of command.json. Untrusted, because it comes from the creator of the checkpoint."""

    format: int
    working_directory: Path
    options: dict[str, Any]
    paths: dict[str, Path]
    signature: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options as they were given."""
        return {**self.options, **self.paths}

    def check_is_own(self, where: str) -> None:
        """Raises SpecError if the command was not written by this user's own `batch-agent run`. `where`: the place
        where it was found, for messages."""
        if is_own(_signed(self.model_dump(mode="json")), self.signature):
            return
        raise SpecError(
            f"The command in {where} is not signed by you: the run was started by another account or machine, the "
            "command was changed since, or your settings directory is not writable. "
            f"Resuming it would {'; '.join(_consequences(self.given))}, in {str(self.working_directory)!r}. If you "
            "trust its creator, add --trust"
        )


def _consequences(options: Mapping[str, Any]) -> Iterator[str]:
    """Phrases that tell a user who did not write the command what resuming does."""
    own = [*(options.get("tools") or []), options.get("runtime"), options.get("schema"), options.get("reduce_schema")]
    own += [name for name in options.get("score") or [] if is_function(str(name))]
    modules = dict.fromkeys(str(name).partition(":")[0] for name in own if name and ":" in str(name))
    if servers := options.get("mcp"):
        yield f"start or reach {', '.join(map(str, servers))}"
    if modules:
        yield f"run the code of {', '.join(modules)}"
    if backend := options.get("backend"):
        with suppress(SpecError):
            named = named_backend(str(backend), parse_backends(options.get("backends") or []))
            credential, label = credential_for(named), settings_of(named).label
            yield f"use {credential} for {label}" if credential else f"send requests to {label}"
    for model in [*(options.get("models") or []), *(options.get("fallback") or [])]:
        if "=" in str(model):
            yield f"send requests to {str(model).partition('=')[2]}"
        elif "://" in str(model):
            yield f"send requests to {model}"
    yield f"read {str(options.get('inputs'))!r}"
    yield f"write {str(options.get('out'))!r}"
    if log := options.get("log_requests"):
        yield f"append to {str(log)!r}"


def read_command(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The working directory and the options of the saved command. Raises StoreError if there is none."""
    command = saved_command(folder)
    return command.working_directory, command.given


def saved_command(folder: Path) -> SavedCommand:
    """The saved command of a checkpoint. Raises StoreError if there is none."""
    try:
        data = _file(folder).read_bytes()
    except FileNotFoundError:
        if _file(folder.parent).exists():
            raise StoreError(
                f"{str(folder)!r} is one stage of the run in {str(folder.parent)!r}. Use that directory."
            ) from None
        raise StoreError(
            f"{str(folder)!r} has no command.json: its run was not started by `batch-agent run`. If it was started "
            f"from Python, run the same code again with checkpoint_dir={str(folder)!r} to resume."
        ) from None
    except OSError as error:
        raise StoreError(f"{str(_file(folder))!r} cannot be read: {error}.") from error
    return parse_command(data, repr(str(_file(folder))))


def parse_command(data: bytes, where: str) -> SavedCommand:
    """Parses a saved command. `where`: the place where it was found, for messages. Raises StoreError."""
    try:
        command = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StoreError(f"{where} cannot be read: {error}.") from error
    if isinstance(command, dict) and isinstance(command.get("format"), int) and command["format"] > _FORMAT:
        raise StoreError(f"{where} was written by a newer version of batch-agent. Upgrade batch-agent.")
    try:
        return SavedCommand.model_validate(command)
    except ValidationError as error:
        raise StoreError(f"{where} cannot be read: {error.errors()[0]['msg']}.") from error


def remote_run_id(folder: Path) -> str | None:
    """The name of a distributed run, whose checkpoint is on a server; None for any other run."""
    with suppress(StoreError):
        name: str | None = read_command(folder)[1].get("run_id")
        return name
    return None


def check_same_location(folder: Path, *, is_shared: bool) -> None:
    """Raises PlanMismatch if the earlier run kept its checkpoint on a server and this one would keep it in its
    directory, or vice versa: all requests would be sent, and paid for, again."""
    if not _file(folder).exists():
        return
    name = remote_run_id(folder)
    if (name is not None) == is_shared:
        return
    was = f"is on a server, as run {name!r}" if name is not None else "is in that directory, not on a server"
    fix = "Add --store" if name is not None else "Remove --store"
    raise PlanMismatch(
        f"The checkpoint of the run in {str(folder)!r} {was}. {fix} to resume it, or choose another --out, or run all "
        "agents again with --plan-changed rerun or --fresh."
    )


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without URLs that contain a secret."""
    return {
        name: value
        for name, value in options.items()
        if not (name in _SECRETS and isinstance(value, str) and _SECRETS[name].search(value))
    }


def stored_urls(entries: list[str] | None) -> list[str] | None:
    """Entries of --models or --fallback; `[NOT_STORED]` if one of them contains a secret."""
    return [NOT_STORED] if any(_SECRETS["backend"].search(each) for each in entries or ()) else entries


def command_json(options: Mapping[str, Any]) -> bytes:
    """The command with these options in its saved form: signed and without secrets. Raises SpecError."""
    saved = without_secrets(options)
    if any(_SECRETS["mcp"].search(server) for server in saved.get("mcp") or ()):
        saved["mcp"] = [NOT_STORED]
    for name in ("models", "fallback"):
        saved[name] = stored_urls(saved.get(name))
    for name in ("schema", "reduce_schema"):
        if (saved[name] or "").endswith(".json"):
            saved[name] = str(Path(saved[name]).absolute())
    paths = {name: str(value.absolute()) for name, value in saved.items() if isinstance(value, Path)}
    command = {
        "format": _FORMAT,
        "working_directory": str(Path.cwd()),
        "options": {name: value for name, value in saved.items() if name not in paths},
        "paths": paths,
    }
    return orjson.dumps({**command, "signature": sign(_signed(command))}, option=orjson.OPT_INDENT_2)


def _signed(command: Mapping[str, Any]) -> bytes:
    """The signed bytes: everything except the signature."""
    signed = {name: value for name, value in command.items() if name != "signature"}
    try:
        return orjson.dumps(signed, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:  # a file name that is not UTF-8
        raise SpecError(
            f"The command cannot be saved for `batch-agent resume`: {error}. Use UTF-8 file names."
        ) from error


def _file(folder: Path) -> Path:
    return folder / "command.json"
