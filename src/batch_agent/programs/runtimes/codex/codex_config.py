"""Codex's configuration, and a home directory for it separate from the user's."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.program_runtime import ModelEndpoint

KEY_VARIABLE = "BATCH_AGENT_CODEX_KEY"
PLACEHOLDER_ENDPOINT = ModelEndpoint("http://127.0.0.1:9", "none", "none")
"""Stands in for an agent's endpoint when the configuration is checked."""
_PROVIDER = "batch"
_DAY_MS = 24 * 3600 * 1000
_UNUSED_FEATURES = (
    "apps",
    "goals",
    "image_generation",
    "plugins",
    "shell_snapshot",
    "sleep_tool",
    "tool_suggest",
    "view_image",
)
"""They need OpenAI's services, a user or images, or make prompts differ between agents."""


@dataclass(frozen=True, slots=True)
class CodexSettings:
    """Settings that all agents of a run share."""

    config: Mapping[str, Any]
    prompt: str | None
    context_tokens: int | None

    def check(self) -> None:
        """Raises SpecError."""
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise SpecError(f"prompt must be a string; got {self.prompt!r}.")
        if not isinstance(self.config, Mapping):
            raise SpecError(f"config must be a mapping in the format of Codex's config.toml; got {self.config!r}.")
        try:
            to_toml(self.config)
        except TypeError as error:
            raise SpecError(f"config must have strings, numbers, booleans, lists and mappings: {error}.") from error


def write_home(home: Path, settings: CodexSettings, endpoint: ModelEndpoint) -> dict[str, str]:
    """Writes CODEX_HOME for an agent and returns the variables that Codex needs."""
    temp = home / "tmp"
    temp.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = _merged(_config(settings, endpoint), settings.config)
    if settings.prompt is not None:
        file = home / "prompt.md"
        file.write_text(settings.prompt)
        config = {"model_instructions_file": str(file), **config}
    (home / "config.toml").write_text("".join(f"{_key(name)} = {to_toml(value)}\n" for name, value in config.items()))
    # Codex keeps its command apply_patch in its home, unless the home is in the temporary directory.
    return {"CODEX_HOME": str(home), "TMPDIR": str(temp), KEY_VARIABLE: endpoint.key}


def to_toml(value: Any) -> str:
    """A value for a TOML file, on one line. Raises TypeError."""
    match value:
        case bool() | str():
            return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case Mapping():
            return "{" + ", ".join(f"{_key(name)} = {to_toml(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(to_toml, value)) + "]"
    raise TypeError(f"{value!r} has no form in TOML")


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a name")
    return to_toml(name)


def _config(settings: CodexSettings, endpoint: ModelEndpoint) -> dict[str, Any]:
    window = {} if settings.context_tokens is None else {"model_context_window": settings.context_tokens}
    return {
        "model": endpoint.model,
        "model_provider": _PROVIDER,
        "model_providers": {_PROVIDER: _provider(endpoint)},
        **window,
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "allow_login_shell": False,
        "analytics": {"enabled": False},
        "history": {"persistence": "none"},
        "agents": {"enabled": False},
        "tools": {"experimental_request_user_input": {"enabled": False}},
        "skills": {"include_instructions": False, "bundled": {"enabled": False}},
        "features": dict.fromkeys(_UNUSED_FEATURES, False),
        "shell_environment_policy": _command_environment(),
    }


def _provider(endpoint: ModelEndpoint) -> dict[str, Any]:
    """Configures the provider without retries, which the run does itself, and with long timeouts, because a request may
    wait for a slot."""
    return {
        "name": _PROVIDER,
        "base_url": endpoint.openai,
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": _DAY_MS,
    }


def _command_environment() -> dict[str, Any]:
    """Gives commands the environment of the run without Codex's own variables."""
    own = os.environ.get("TMPDIR")
    return {
        "inherit": "all",
        "ignore_default_excludes": True,
        "exclude": [KEY_VARIABLE, "CODEX_*", *([] if own else ["TMPDIR"])],
        "set": {"TMPDIR": own} if own else {},
    }


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged
