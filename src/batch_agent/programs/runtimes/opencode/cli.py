"""The program `opencode`: whether it is here, whether it is one that we know."""

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ....core.errors import SpecError
from ....supervisor import ExitResult, ProgramCommand, ProgramError, run_program
from ..environment import last_output

OLDEST = (1, 18, 18)
_INSTALL = "npm install -g opencode-ai"
_VERSION = re.compile(rb"\s*v?(\d+)\.(\d+)\.(\d+)")
_ANSWERS_IN = 120.0


def find_opencode(command: str) -> str:
    """Its path. Raises SpecError."""
    found = shutil.which(command)
    if found is None:
        raise SpecError(f"{command!r} is not installed here. Install OpenCode with `{_INSTALL}`, or say command=PATH.")
    return found


async def check_version(program: str, environment: Mapping[str, str], cwd: Path) -> None:
    """Raises SpecError."""
    ended = await _run([program, "--version"], environment, cwd)
    found = _VERSION.match(ended.out)
    if ended.code != 0 or found is None:
        said = last_output(ended.out.decode(errors="replace") + ended.err)
        raise SpecError(
            f"{program!r} is not the OpenCode that is known here: asked for its version it said {said!r} "
            f"(exit status {ended.code}). Install it with `{_INSTALL}`, or say command=PATH."
        )
    version = tuple(map(int, found.groups()))
    if version < OLDEST:
        is_there, least = (".".join(map(str, each)) for each in (version, OLDEST))
        raise SpecError(f"{program!r} is OpenCode {is_there}; {least} or newer is needed. Run `{_INSTALL}`.")


async def check_config(program: str, environment: Mapping[str, str], cwd: Path) -> None:
    """Whether it takes what it is told, in a folder. Raises SpecError."""
    ended = await _run([program, "debug", "config"], {**environment, "PWD": str(cwd)}, cwd)
    if ended.code != 0:
        raise refused_config(last_output(ended.err))


def refused_config(why: str) -> SpecError:
    return SpecError(f"OpenCode does not take its configuration, perhaps for what `config` says: {why}")


async def _run(words: list[str], environment: Mapping[str, str], cwd: Path) -> ExitResult:
    try:
        async with asyncio.timeout(_ANSWERS_IN):
            return await run_program(ProgramCommand(words, environment, cwd))
    except ProgramError as error:
        raise SpecError(f"{error} Install OpenCode with `{_INSTALL}`.") from error
    except TimeoutError as error:
        raise SpecError(f"`{' '.join(words)}` did not end in {_ANSWERS_IN:.0f} s: is that OpenCode?") from error
