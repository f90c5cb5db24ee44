"""Programs that users install themselves: lookup and version check."""

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...supervisor import ExitResult, ProgramCommand, ProgramError, run_program
from .environment import last_output

_VERSION = re.compile(rb"\s*(?:[a-z-]+ )?v?(\d+)\.(\d+)\.(\d+)")
_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A program of which a run needs a minimum version."""

    name: str
    install: str
    """The command that installs it."""
    min_version: tuple[int, int, int]

    def find(self, command: str) -> str:
        """The path of the program. Raises SpecError."""
        found = shutil.which(command)
        if found is None:
            raise SpecError(
                f"{command!r} is not installed. Install {self.name} with `{self.install}`, or pass command=PATH."
            )
        return found

    async def check_version(self, program: str, environment: Mapping[str, str], cwd: Path) -> None:
        """Raises SpecError."""
        ended = await self.run([program, "--version"], environment, cwd)
        found = _VERSION.match(ended.out)
        if ended.code != 0 or found is None:
            output = last_output(ended.out.decode(errors="replace") + ended.err)
            raise SpecError(
                f"{program!r} is not a known version of {self.name}: `--version` printed {output!r} "
                f"(exit status {ended.code}). Install it with `{self.install}`, or pass command=PATH."
            )
        version = tuple(map(int, found.groups()))
        if version < self.min_version:
            installed, least = (".".join(map(str, each)) for each in (version, self.min_version))
            raise SpecError(
                f"{program!r} is {self.name} {installed}; {least} or newer is required. Run `{self.install}`."
            )

    async def check_config(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Checks with a command of the program whether it accepts its configuration. Raises SpecError."""
        ended = await self.run(command, environment, cwd)
        if ended.code != 0:
            raise self.rejected_config(last_output(ended.err))

    def rejected_config(self, why: str) -> SpecError:
        return SpecError(f"{self.name} rejected its configuration; check `config`: {why}")

    async def run(self, command: list[str], environment: Mapping[str, str], cwd: Path) -> ExitResult:
        """Raises SpecError."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await run_program(ProgramCommand(command, {**environment, "PWD": str(cwd)}, cwd))
        except ProgramError as error:
            raise SpecError(f"{error} Install {self.name} with `{self.install}`.") from error
        except TimeoutError as error:
            raise SpecError(
                f"`{' '.join(command)}` did not finish in {_TIMEOUT:.0f} s. Check that it is {self.name}."
            ) from error
