"""What lies between a program and us: what it finds in its environment, and what it says at its end."""

import os
import re
from collections.abc import Mapping

from ...supervisor.environment_secrets import without_secrets

_NOT_THEIRS = re.compile(
    r"(OPENAI|ANTHROPIC|OPENCODE|BATCH_AGENT)_.*"  # another server, another model, other settings than the run's
    r"|CLAUDECODE|CLAUDE_CODE_(USE_.*|ENTRYPOINT|SSE_PORT)",  # some programs do not start inside themselves
    re.IGNORECASE,
)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SHOWN = 2_000
_LOOPBACK = ("127.0.0.1", "localhost")


def user_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the user has there, without secrets, and without what would lead a program around us. A model decides what
    the program does: it gets the keys that the user gives it by name, with `env`, and no others. No proxy stands
    between a program and us."""
    kept = {name: value for name, value in without_secrets(environ).items() if not _NOT_THEIRS.fullmatch(name)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(dict.fromkeys([*filter(None, kept.get(name, "").split(",")), *_LOOPBACK]))
    return kept


def last_output(text: str) -> str:
    """The end of what a program said, as it is told to the user."""
    return _COLOURS.sub("", text).strip()[-_SHOWN:] or "it said nothing"
