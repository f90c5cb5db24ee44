"""The `opencode` program: lookup, version check and configuration check."""

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ....core.errors import SpecError
from ....supervisor import ExitResult, ProgramCommand, ProgramError, run_program
from ..environment import last_output

MIN_VERSION = (1, 18, 18)
_INSTALL = "npm install -g opencode-ai"
_VERSION = re.compile(rb"\s*v?(\d+)\.(\d+)\.(\d+)")
_TIMEOUT = 120.0


def find_opencode(command: str) -> str:
    """The path of the program. Raises SpecError."""
    found = shutil.which(command)
    if found is None:
        raise SpecError(f"{command!r} is not installed. Install OpenCode with `{_INSTALL}`, or pass command=PATH.")
    return found


async def check_version(program: str, environment: Mapping[str, str], cwd: Path) -> None:
    """Raises SpecError."""
    ended = await _run([program, "--version"], environment, cwd)
    found = _VERSION.match(ended.out)
    if ended.code != 0 or found is None:
        output = last_output(ended.out.decode(errors="replace") + ended.err)
        raise SpecError(
            f"{program!r} is not a known version of OpenCode: `--version` printed {output!r} "
            f"(exit status {ended.code}). Install it with `{_INSTALL}`, or pass command=PATH."
        )
    version = tuple(map(int, found.groups()))
    if version < MIN_VERSION:
        installed, least = (".".join(map(str, each)) for each in (version, MIN_VERSION))
        raise SpecError(f"{program!r} is OpenCode {installed}; {least} or newer is required. Run `{_INSTALL}`.")


async def check_config(program: str, environment: Mapping[str, str], cwd: Path) -> None:
    """Checks that OpenCode accepts its configuration in a directory. Raises SpecError."""
    ended = await _run([program, "debug", "config"], {**environment, "PWD": str(cwd)}, cwd)
    if ended.code != 0:
        raise refused_config(last_output(ended.err))


def refused_config(why: str) -> SpecError:
    return SpecError(f"OpenCode rejected its configuration; check `config`: {why}")


async def _run(command: list[str], environment: Mapping[str, str], cwd: Path) -> ExitResult:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await run_program(ProgramCommand(command, environment, cwd))
    except ProgramError as error:
        raise SpecError(f"{error} Install OpenCode with `{_INSTALL}`.") from error
    except TimeoutError as error:
        raise SpecError(
            f"`{' '.join(command)}` did not finish in {_TIMEOUT:.0f} s. Check that it is OpenCode."
        ) from error
