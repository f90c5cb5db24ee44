"""Trust of a worker in the run that it joins. The run's description comes from Redis: whoever can write there must not
get a key of this machine, have a function of it called, or have a file of it read. What the worker's own command line
names is trusted, and nothing else."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..backends.address import credential_for
from ..core.errors import SpecError
from ..tools import Tool
from ..tools.adapters import from_langchain


class TrustPolicy:
    """What `--trust` names: tools (`my_tools:look`, `http_get`), modules, programs, and folders."""

    def __init__(self, named: Sequence[str] = ()) -> None:
        """Names with a slash, or that begin with a dot, are folders."""
        self._names = frozenset(name for name in named if not _is_folder(name))
        self._folders = [Path(name).resolve() for name in named if _is_folder(name)]

    def check_module(self, name: str, what: str) -> None:
        """`name`: module:attribute. Nothing is imported. Raises SpecError."""
        if not (name in self._names or self._has_module(name)):
            raise SpecError(
                f"{what} {name!r} is code of this machine that this worker was not told to run. If it may, say "
                f"--trust {shlex.quote(name)}"
            )

    def check_tool(self, name: str, value: Any) -> None:
        """`value`: what the module has under that name. A module holds more than its tools, such as what it imported:
        what is no tool must be named in full. Raises SpecError."""
        if name not in self._names and not isinstance(value, Tool) and from_langchain(value) is None:
            raise SpecError(
                f"The run's tool {name!r} was not made a tool with @Tool.define. If agents may call it all the same, "
                f"say --trust {shlex.quote(name)}"
            )

    def check_built_in(self, name: str) -> None:
        """Raises SpecError for a tool that uses the network and the search keys of this machine."""
        if name not in self._names:
            raise SpecError(
                f"The run's tool {name!r} uses the network of this machine, and its keys where it has some. If it may, "
                f"say --trust {shlex.quote(name)}"
            )

    def check_program(self, name: str) -> None:
        """Raises SpecError."""
        if name not in self._names:
            raise SpecError(
                f"The run's agents are {name} programs, which run commands on this machine as you. If they may, say "
                f"--trust {shlex.quote(name)}"
            )

    def check_folder(self, folder: Path, what: str) -> None:
        """Raises SpecError."""
        if not any(folder.resolve().is_relative_to(trusted) for trusted in self._folders):
            raise SpecError(
                f"{what} {str(folder)!r}, which this worker was not told to let agents read. If they may, say "
                f"--trust {shlex.quote(str(folder))}"
            )
        if not folder.is_dir():
            raise SpecError(
                f"{what} {str(folder)!r}, and there is no such folder on this machine. Workers need the same files at "
                "the same place, as on a file system that all share."
            )

    def _has_module(self, name: str) -> bool:
        module, _, attribute = name.partition(":")
        parts = module.split(".")
        return bool(attribute) and any(".".join(parts[:end]) in self._names for end in range(1, len(parts) + 1))


def check_backend(url: str) -> None:
    """For the backend that a run names, and not this worker's owner. Raises SpecError for one that would get a key of
    this machine, or that is a file of it."""
    credential = credential_for(url)
    if credential is not None:
        raise SpecError(
            f"The run's backend is {url}, and this worker would use {credential} for it. If it may, say "
            f"--backend {shlex.quote(url)}"
        )


def _is_folder(name: str) -> bool:
    return os.sep in name or "/" in name or name.startswith(".")
