"""Environment and output of a program."""

import os
import re
from collections.abc import Mapping

from ...supervisor.environment_secrets import without_secrets

_REMOVED = re.compile(
    r"(OPENAI|ANTHROPIC|OPENCODE|CODEX|BATCH_AGENT)_.*"  # would select another server, model or settings than the run's
    r"|CLAUDECODE|CLAUDE_CODE_(USE_.*|ENTRYPOINT|SSE_PORT)",  # some programs refuse to start inside themselves
    re.IGNORECASE,
)
_ANSI_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_OUTPUT_CHARS = 2_000
_LOOPBACK = ("127.0.0.1", "localhost")


def user_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's environment without secrets and without settings that would lead a program past the run. A model
    decides what the program does, so it gets only keys that the user passes with `env`. Loopback connections bypass
    proxies."""
    kept = {name: value for name, value in without_secrets(environ).items() if not _REMOVED.fullmatch(name)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(dict.fromkeys([*filter(None, kept.get(name, "").split(",")), *_LOOPBACK]))
    return kept


def last_output(text: str) -> str:
    """The end of a program's output, for an error message."""
    return _ANSI_CODES.sub("", text).strip()[-_MAX_OUTPUT_CHARS:] or "no output"
