"""The real Claude Code of scripts/engines."""

import sys
from pathlib import Path

from scripts.engines.claude_code_env import PROGRAM
from scripts.engines.layout import CLAUDE_CODE, engines_root
from tests.live.engines import EngineFailedError

from batch_agent import ProcessRuntime

_ENVIRONMENT = {
    "CLAUDE_CONFIG_DIR": "{folder}/../claude",  # beside the working copy, and as short-lived
    "IS_SANDBOX": "1",  # as root
}


def claude_program() -> str:
    """Its path. Raises EngineFailedError."""
    if not CLAUDE_CODE.is_ready():
        raise EngineFailedError(
            f"claude-code is not installed in {engines_root()}, or installed by an older recipe. "
            f"Run `{sys.executable} -m scripts.engines.install claude-code` in the repository root."
        )
    return str(CLAUDE_CODE.folder / PROGRAM)


def claude_runtime(project: Path, tools: str, *arguments: str) -> ProcessRuntime:
    """With a short prompt and few tools, as small models need them. It sends requests to the gateway and nowhere
    else."""
    command = [claude_program(), "-p", "--model", "{model}", "--dangerously-skip-permissions", "--tools", tools]
    prompt = ["--system-prompt", "You are a clerk. Answer in one sentence.", "--disable-slash-commands"]
    return ProcessRuntime([*command, *prompt, *arguments], _ENVIRONMENT, workdir=project)
