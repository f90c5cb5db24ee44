"""What a run may use on a worker's machine. Its description comes over the network: who writes it must not be able to
have any function of this machine called, or any file read."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from ..core.errors import SpecError


class Trusted:
    """The folder where the worker was started, and what else its owner names: packages, and folders."""

    def __init__(self, folder: Path, others: Sequence[str] = ()) -> None:
        """Of `others`, those with a slash, or that begin with a dot, are folders."""
        self._folder = folder.resolve()
        self._packages = [name for name in others if not _is_folder(name)]
        self._folders = [self._folder, *(Path(name).resolve() for name in others if _is_folder(name))]

    def check_module(self, name: str, what: str) -> None:
        """`name`: module:function. Nothing is imported. Raises SpecError."""
        module = name.partition(":")[0]
        package = module.partition(".")[0]
        if self._has(package) or any(f"{module}.".startswith(f"{each}.") for each in self._packages):
            return
        raise SpecError(
            f"{what} {name!r}: there is no module {package!r} in {str(self._folder)!r}, where this worker was started. "
            f"Start it where the module is; or, if it is installed here and agents may use it, say --trust {package}"
        )

    def check_program(self, name: str) -> None:
        """Raises SpecError."""
        if name not in self._packages:
            raise SpecError(
                f"The run's agents are {name} programs, which run commands on this machine as you. If they may, say "
                f"--trust {name}"
            )

    def check_folder(self, folder: Path, what: str) -> None:
        """Raises SpecError."""
        if not folder.is_dir():
            raise SpecError(
                f"{what} {str(folder)!r}, and there is no such folder on this machine. Workers need the same files at "
                "the same place, as on a file system that all share."
            )
        if not any(folder.resolve().is_relative_to(trusted) for trusted in self._folders):
            raise SpecError(
                f"{what} {str(folder)!r}, which is not in {str(self._folder)!r}, where this worker was started. If "
                f"agents may read it on this machine, say --trust {folder}"
            )

    def _has(self, package: str) -> bool:
        is_own = package not in sys.stdlib_module_names and package not in sys.builtin_module_names
        return bool(package) and is_own and PathFinder.find_spec(package, [str(self._folder)]) is not None


def _is_folder(name: str) -> bool:
    return os.sep in name or "/" in name or name.startswith(".")
