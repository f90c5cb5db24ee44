"""OpenCode's configuration. The text is the same for all agents of a run. Values that differ are in files next to an
agent's directory, included by relative path."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.program_runtime import ModelEndpoint
from ..installed_program import InstalledProgram

OPENCODE = InstalledProgram("OpenCode", "npm install -g opencode-ai", (1, 18, 18))
PROVIDER = "batch"
AGENT = "batch-agent"
TEMP_DIR = Path("..", "tmp")
"""Directory for files outside the working copy, relative to it."""
PLACEHOLDER_ENDPOINT = ModelEndpoint("http://127.0.0.1:9", "none", "none")
"""Stands in for an agent's endpoint when the configuration is checked."""
_ENDPOINT_DIR = "endpoint"
_MAX_OUTPUT_TOKENS = 32_000
_DEFAULT_OUTPUT_TOKENS = 8_192
_SETTINGS: Mapping[str, Any] = {
    "share": "disabled",
    "autoupdate": False,
    "snapshot": False,
    "formatter": False,
    "lsp": False,
    "enabled_providers": [PROVIDER],
    "default_agent": AGENT,
}


@dataclass(frozen=True, slots=True)
class OpenCodeSettings:
    """The user's part of the configuration."""

    tools: Sequence[str] | None = None
    config: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raises SpecError."""
        tools = self.tools
        if tools is not None and (isinstance(tools, str) or not all(isinstance(name, str) and name for name in tools)):
            raise SpecError(
                f"tools must be a list of names of OpenCode's tools, such as ['read', 'edit', 'bash']; got {tools!r}."
            )
        if self.config is not None and not isinstance(self.config, Mapping):
            raise SpecError(f"config must be a mapping in the format of opencode.json; got {self.config!r}.")
        try:
            orjson.dumps(self.config)
        except TypeError as error:
            raise SpecError(f"config must be JSON-serializable: {error}.") from error
        if asking := _first_ask(self.config or {}):
            raise SpecError(
                f"config sets {asking} to 'ask', but no user can be asked during a run. Use 'allow' or 'deny'."
            )


def config_text(settings: OpenCodeSettings, root: Path, shell: Path, prompt: Path | None, window: int | None) -> str:
    """`root`: contains the agents' workspaces. `shell`: runs their commands. `prompt`: file with the system prompt."""
    permission = _permission(settings.tools, root)
    agent: dict[str, Any] = {"mode": "primary", "permission": permission}
    if prompt is not None:
        agent["prompt"] = f"{{file:{prompt}}}"  # in a file, where OpenCode does not expand {env:...}
    model = _from_endpoint_file("model")
    defaults = {
        **_SETTINGS,
        "model": f"{PROVIDER}/{model}",
        "small_model": f"{PROVIDER}/{model}",
        "shell": str(shell),
        "provider": {
            PROVIDER: {
                "name": PROVIDER,
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": _from_endpoint_file("url"), "apiKey": _from_endpoint_file("key")},
                "models": {model: {"name": model, "limit": _limit(window)}},
            }
        },
        "permission": permission,
        "agent": {AGENT: agent},
    }
    return orjson.dumps(_merge(defaults, settings.config or {})).decode()


def write_config(folder: Path, address: ModelEndpoint) -> None:
    """Writes the files that the configuration includes, next to an agent's directory."""
    private_dir = folder.parent
    endpoint_dir = private_dir / _ENDPOINT_DIR
    endpoint_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in (("url", address.openai), ("key", address.key), ("model", address.model)):
        (endpoint_dir / name).write_text(text)
    (private_dir / TEMP_DIR.name / "opencode").mkdir(parents=True, exist_ok=True)  # OpenCode uses this name
    if (folder / ".git").is_dir():
        # Otherwise OpenCode treats all copies as one project, and runs git on all of them for each.
        (folder / ".git" / "opencode").write_text(secrets.token_hex(20))


def _from_endpoint_file(name: str) -> str:
    return f"{{file:../{_ENDPOINT_DIR}/{name}}}"


def _permission(tools: Sequence[str] | None, root: Path) -> dict[str, Any]:
    """Permissions: anything that is not denied is done without asking. The last matching rule applies."""
    every: dict[str, Any] = {"*": "allow", "skill": {"*": "allow", "customize-opencode": "deny"}}
    return {
        **(every if tools is None else {"*": "deny", **dict.fromkeys(map(_permission_name, tools), "allow")}),
        "external_directory": {"*": "deny", f"{root}/*/{TEMP_DIR.name}/*": "allow"},
        "doom_loop": "allow",  # the run's limits stop a program that repeats itself
        "question": "deny",
        "plan_enter": "deny",
        "plan_exit": "deny",
    }


def _permission_name(tool: str) -> str:
    """The permission of a tool. OpenCode has a single one for all tools that change files."""
    return "edit" if tool in ("write", "patch", "apply_patch") else tool


def _limit(window: int | None) -> dict[str, int]:
    """Limits by which OpenCode chooses the length of the output, and compacts a conversation near the context window;
    0: never."""
    if window is None:
        return {"context": 0, "output": _DEFAULT_OUTPUT_TOKENS}
    return {"context": window, "output": max(1, min(window // 4, _MAX_OUTPUT_TOKENS))}


def _merge(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merges mappings recursively. `overrides` win."""
    merged = dict(defaults)
    for name, value in overrides.items():
        own = merged.get(name)
        merged[name] = _merge(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _first_ask(config: Mapping[str, Any]) -> str:
    """The first permission with the value 'ask'."""
    agents = config.get("agent")
    each = agents.items() if isinstance(agents, Mapping) else ()
    sections = {"permission": config, **{f"agent.{agent_name}.permission": agent for agent_name, agent in each}}
    for name, value in sections.items():
        if isinstance(value, Mapping) and _asks(value.get("permission")):
            return name
    return ""


def _asks(permission: Any) -> bool:
    return permission == "ask" or (isinstance(permission, Mapping) and any(map(_asks, permission.values())))
