"""The command that made a checkpoint, kept beside it, so that it can be given again from anywhere.

Signatures of what `batch-agent run` keeps beside a checkpoint. A checkpoint may come from somebody else, and its
command names modules to import, files to read and write, and a server to send a key to: `batch-agent resume` gives it
again without asking only if this user's own `batch-agent run` has written it.
"""

import hashlib
import hmac
import os
import re
import secrets
import sys
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
from ..observe.live.progress import Progress

_BYTES = 32


def sign(data: bytes) -> str | None:
    """With the secret of this user, which is made if there is none; None where it cannot be kept."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        return _signature(_made() if (secret := _read()) is None else secret, data)
    return None


def is_own(data: bytes, signature: object) -> bool:
    """Whether this user's `sign` has made the signature of these data."""
    with suppress(OSError, RuntimeError):
        secret = _read()
        if secret is not None and isinstance(signature, str) and signature.isascii():
            return hmac.compare_digest(_signature(secret, data), signature)
    return False


def secret_file() -> Path:
    """Where the secret is kept. It may not exist yet."""
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "batch-agent" / "checkpoint.key"


def _signature(secret: bytes, data: bytes) -> str:
    return hmac.new(secret, data, hashlib.sha256).hexdigest()


def _read() -> bytes | None:
    try:
        secret = secret_file().read_bytes()
    except FileNotFoundError:
        return None
    return secret if len(secret) == _BYTES else None


def _made() -> bytes:
    """Raises OSError. Of two processes that make it at once, one does; the other one takes that."""
    file = secret_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)  # whole or not at all, and never in the place of another one
    finally:
        draft.unlink(missing_ok=True)
    secret = _read()
    if secret is None:
        raise OSError(f"{str(file)!r} is no secret of batch-agent.")
    return secret


_FORMAT = 3
_IN_QUERY = r"[?&][^=&]*(?:key|token|secret|sig|password)[^=&]*="
_SECRETS = {
    "backend": re.compile(rf"//[^/@]*@|{_IN_QUERY}", re.IGNORECASE),
    "inputs": re.compile(rf"//[^@]*:[^@]*@|{_IN_QUERY}", re.IGNORECASE),  # of a database: a user alone is no secret
    "store": re.compile(rf"//[^@]*@|{_IN_QUERY}", re.IGNORECASE),
}


class CommandSaver:
    """Progress that also keeps the command, as soon as the run has started: one that was refused, because it asks
    another question than the checkpoint answers, does not take the place of the one that made it."""

    def __init__(self, progress: Progress, folder: Path, options: Mapping[str, Any]) -> None:
        self._progress = progress
        self._folder = folder
        self._command = _command(options)

    def emit(self, event: Event) -> None:
        if isinstance(event.event if isinstance(event, StageEvent) else event, RunStarted):
            with (
                suppress(SpecError),
                atomic_write(_file(self._folder), is_private=True) as file,
            ):  # without it the run is as good
                file.write(orjson.dumps(self._command, option=orjson.OPT_INDENT_2))
        self._progress.emit(event)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)


class SavedCommand(BaseModel):
    """What command.json holds. Whoever made the checkpoint has written it."""

    format: int
    working_directory: Path
    options: dict[str, Any]
    paths: dict[str, Path]
    signature: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options as they were given."""
        return {**self.options, **self.paths}

    def check_is_own(self, folder: Path) -> None:
        """Raises SpecError for a command that this user's own `batch-agent run` has not written."""
        if is_own(_signed(self.model_dump(mode="json")), self.signature):
            return
        raise SpecError(
            f"The checkpoint {str(folder)!r} was made by another account or machine, or by an older version, or was "
            "changed since, or could not be signed because your folder of settings cannot be written to. To resume it "
            f"is to {'; '.join(_consequences(self.given))}, in "
            f"{str(self.working_directory)!r}. If you trust whoever made it, say --trust"
        )


def _consequences(options: Mapping[str, Any]) -> Iterator[str]:
    """What resuming comes to, in words, for somebody who has not given the command."""
    own = [*(options.get("tools") or []), options.get("runtime"), options.get("schema"), options.get("reduce_schema")]
    modules = dict.fromkeys(str(name).partition(":")[0] for name in own if name and ":" in str(name))
    if modules:
        yield f"run the code of {', '.join(modules)}"
    if backend := options.get("backend"):
        with suppress(SpecError):
            credential = credential_for(str(backend))
            yield f"use {credential} for {backend}" if credential else f"ask {backend}"
    yield f"read {str(options.get('inputs'))!r}"
    yield f"write {str(options.get('out'))!r}"


def read_command(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder where the command was given, and its options. Raises StoreError where none was kept."""
    kept = saved_command(folder)
    return kept.working_directory, kept.given


def saved_command(folder: Path) -> SavedCommand:
    """Raises StoreError where none was kept."""
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
    if isinstance(command, dict) and isinstance(command.get("format"), int) and command["format"] > _FORMAT:
        raise StoreError(f"{str(_file(folder))!r} was written by a newer version of batch-agent. Upgrade batch-agent.")
    try:
        return SavedCommand.model_validate(command)
    except ValidationError as error:
        raise StoreError(f"{str(_file(folder))!r} cannot be read: {error.errors()[0]['msg']}.") from error


def remote_run_id(folder: Path) -> str | None:
    """The name of a run whose progress is on a server, and not in its folder."""
    with suppress(StoreError):
        name: str | None = read_command(folder)[1].get("run_id")
        return name
    return None


def check_same_location(folder: Path, *, is_shared: bool) -> None:
    """Raises PlanMismatch where the progress of the run that the folder belongs to is not where this one keeps its own:
    everything would be asked, and paid for, again."""
    if not _file(folder).exists():
        return
    name = remote_run_id(folder)
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
    command = {
        "format": _FORMAT,
        "working_directory": str(Path.cwd()),
        "options": {name: value for name, value in kept.items() if name not in paths},
        "paths": paths,
    }
    return {**command, "signature": sign(_signed(command))}


def _signed(command: Mapping[str, Any]) -> bytes:
    """What the signature is about: all but itself."""
    signed = {name: value for name, value in command.items() if name != "signature"}
    try:
        return orjson.dumps(signed, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:  # the name of a file that is no UTF-8
        raise SpecError(f"The command cannot be kept for a resume: {error}. Name files in UTF-8.") from error


def _file(folder: Path) -> Path:
    return folder / "command.json"
