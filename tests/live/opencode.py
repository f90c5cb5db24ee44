"""The real OpenCode of scripts/engines, and a project for it to work on."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.engines.layout import OPENCODE, engines_root
from scripts.engines.opencode_env import PROGRAM
from tests.live.engines import EngineFailedError


def opencode_program() -> str:
    """Its path. Raises EngineFailedError."""
    if not OPENCODE.is_ready():
        raise EngineFailedError(
            f"opencode is not installed in {engines_root()}, or installed by an older recipe. "
            f"Run `{sys.executable} -m scripts.engines.install opencode` in the repository root."
        )
    return str(OPENCODE.folder / PROGRAM)


def make_project(folder: Path) -> Path:
    folder.mkdir()
    (folder / "read.me").write_text("The harbour keeps a register.\n")
    (folder / "AGENTS.md").write_text("Answer in one sentence.\n")
    return folder


def processes(is_one: Callable[[str], bool]) -> Iterator[int]:
    """Those whose command line is one; those that have ended have none."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it is gone by now
            if is_one(words):
                yield int(place.name)
