"""Trust of a worker in the run that it joins. The run's description comes from Redis, and a client that can write there
must not get an API key of this machine, call its functions or read its files. Only what is named on the worker's own
command line is trusted."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..backends.address import credential_for
from ..core.errors import SpecError
from ..core.options.backend_settings import NamedBackend, settings_of
from ..core.options.fallback_entry import parse_fallback
from ..tools import Tool
from ..tools.adapters import from_langchain


class TrustPolicy:
    """What `--trust` allows: tools (`my_tools:search`, `http_get`), modules, programs and directories."""

    def __init__(self, named: Sequence[str] = ()) -> None:
        """`named`: values of `--trust`. Those with a slash, or that begin with a dot, are directories."""
        self._names = frozenset(name for name in named if not _is_folder(name))
        self._folders = [Path(name).resolve() for name in named if _is_folder(name)]

    def check_module(self, name: str, what: str) -> None:
        """Raises SpecError unless `name` (module:attribute) is trusted. Imports nothing."""
        if not (name in self._names or self._has_module(name)):
            raise SpecError(
                f"{what} {name!r} is code that this worker does not trust. To allow it, add --trust {shlex.quote(name)}"
            )

    def check_tool(self, name: str, value: Any) -> None:
        """Raises SpecError if `value` is not a tool, unless it is named in full: a trusted module also contains other
        functions, such as those that it imports."""
        if name not in self._names and not isinstance(value, Tool) and from_langchain(value) is None:
            raise SpecError(
                f"The run's tool {name!r} is not defined with @Tool.define. To allow agents to call it, add "
                f"--trust {shlex.quote(name)}"
            )

    def check_built_in(self, name: str) -> None:
        """Raises SpecError for an untrusted tool that uses the network or the search keys of this machine."""
        if name not in self._names:
            raise SpecError(
                f"The run's tool {name!r} uses the network of this machine, and its API keys if it has any. To allow "
                f"it, add --trust {shlex.quote(name)}"
            )

    def check_program(self, name: str) -> None:
        """Raises SpecError."""
        if name not in self._names:
            raise SpecError(
                f"The run's agents are {name} programs, which run commands on this machine as your user. To allow "
                f"them, add --trust {shlex.quote(name)}"
            )

    def check_folder(self, folder: Path, what: str) -> None:
        """Raises SpecError."""
        if not any(folder.resolve().is_relative_to(trusted) for trusted in self._folders):
            raise SpecError(
                f"{what} {str(folder)!r}, which this worker does not trust. To let agents read it, add "
                f"--trust {shlex.quote(str(folder))}"
            )
        if not folder.is_dir():
            raise SpecError(
                f"{what} {str(folder)!r}, which does not exist on this machine. Workers need the same files under the "
                "same path, for example on a shared file system."
            )

    def _has_module(self, name: str) -> bool:
        module, _, attribute = name.partition(":")
        parts = module.split(".")
        return bool(attribute) and any(".".join(parts[:end]) in self._names for end in range(1, len(parts) + 1))


def check_backend(backend: NamedBackend, name: str | None = None) -> None:
    """Raises SpecError if a backend is named only by the run, and would get an API key of this machine or is a file on
    it. `name`: name of a backend with settings, in the run's config file."""
    credential = credential_for(backend)
    if credential is None:
        return
    label = settings_of(backend).label
    where = "" if isinstance(backend, str) else f"describe it in batch.toml here, as [backends.{name or 'NAME'}], and "
    flag = shlex.quote(backend if isinstance(backend, str) else name or "NAME")
    raise SpecError(
        f"The run's backend is {label}, for which this worker would use {credential}. To allow it, {where}add "
        f"--backend {flag}"
    )


def fallback_credential(entry: str) -> str | None:
    """The credential that a worker would use for the backend of a --fallback entry; None if it needs nothing from this
    machine."""
    _, backend = parse_fallback(entry)
    return None if backend is None else credential_for(backend)


def check_fallback(entry: str, entries: Sequence[str]) -> None:
    """Like `check_backend`, for an entry of --fallback."""
    if (credential := fallback_credential(entry)) is not None:
        raise SpecError(
            f"A fallback of the run is {entry}, for which this worker would use {credential}. To allow it, add "
            f"--fallback {shlex.join(entries)}"
        )


def _is_folder(name: str) -> bool:
    return os.sep in name or "/" in name or name.startswith(".")
