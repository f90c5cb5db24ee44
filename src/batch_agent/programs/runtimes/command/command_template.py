"""Placeholders in a user's command, and the conversation as one prompt."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ....core.program_runtime import ModelEndpoint

TASK = "{task}"
_NAMES = re.compile(r"\{(url|openai_url|key|model|task|folder)\}")
# Names under which most programs look for the model's address.
_STANDARD_ENV = {
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
    """Replaces placeholders by an agent's values. Other braces stay unchanged."""

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
        return [self._fill(part) for part in command]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """With the standard names, unless `env` sets them."""
        return {name: self._fill(value) for name, value in {**_STANDARD_ENV, **env}.items()}

    def _fill(self, text: str) -> str:
        return _NAMES.sub(lambda found: self._values[found[1]], text)


def names_task(command: Iterable[str], env: Mapping[str, str]) -> bool:
    """Whether {task} occurs; otherwise the task is written to stdin."""
    return any(TASK in text for text in (*command, *env.values()))


def replay_conversation(exchanges: Iterable[tuple[str, str]], text: str) -> str:
    """The conversation so far and the new prompt, for a program that remembers nothing."""
    parts = [part for prompt, answer in exchanges for part in (prompt, f"Your answer was:\n{answer}")]
    return "\n\n".join([*parts, text])
