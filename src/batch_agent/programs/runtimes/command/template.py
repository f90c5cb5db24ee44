"""What a command of the user's is told of the agent that it works for."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ....core.program_runtime import ModelEndpoint

TASK = "{task}"
_NAMES = re.compile(r"\{(url|openai_url|key|model|task|folder)\}")
# Most programs that take a base URL look for it under one of these names.
_USUAL = {
    "OPENAI_BASE_URL": "{openai_url}",
    "OPENAI_API_BASE": "{openai_url}",
    "OPENAI_API_KEY": "{key}",
    "OPENAI_MODEL": "{model}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{key}",
    "ANTHROPIC_MODEL": "{model}",
    "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
}


class CommandTemplate:
    """Puts what an agent has in the place of the names for it. All other braces stay as they are."""

    def __init__(self, address: ModelEndpoint, folder: Path, task: str) -> None:
        self._values = {
            "url": address.url,
            "openai_url": address.openai,
            "key": address.key,
            "model": address.model,
            "task": task,
            "folder": str(folder),
        }

    def command(self, command: Iterable[str]) -> list[str]:
        return [self._filled(word) for word in command]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """With the usual names, where `env` does not say otherwise."""
        return {name: self._filled(value) for name, value in {**_USUAL, **env}.items()}

    def _filled(self, text: str) -> str:
        return _NAMES.sub(lambda found: self._values[found[1]], text)


def names_task(command: Iterable[str], env: Mapping[str, str]) -> bool:
    """Otherwise it is read from stdin."""
    return any(TASK in text for text in (*command, *env.values()))


def replay_conversation(said: Iterable[tuple[str, str]], text: str) -> str:
    """All that was asked and answered, for a program that remembers nothing."""
    parts = [part for asked, answer in said for part in (asked, f"Your answer was:\n{answer}")]
    return "\n\n".join([*parts, text])
