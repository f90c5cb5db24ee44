"""The real Codex of scripts/engines."""

import sys

from scripts.engines.codex_env import PROGRAM
from scripts.engines.layout import CODEX, engines_root
from tests.live.engines import EngineFailedError


def codex_program() -> str:
    """Its path. Raises EngineFailedError."""
    if not CODEX.is_ready():
        raise EngineFailedError(
            f"codex is not installed in {engines_root()}, or installed by an older recipe. "
            f"Run `{sys.executable} -m scripts.engines.install codex` in the repository root."
        )
    return str(CODEX.folder / PROGRAM)
