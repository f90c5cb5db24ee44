"""What OpenCode is told by its configuration. It is the same text for all agents of a run: what is different for each
stands in files beside its folder, where OpenCode looks for them by a relative path."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ....core.errors import SpecError
from ....core.fast_dataclass import dataclass
from ....core.program_runtime import ModelEndpoint

PROVIDER = "batch"
AGENT = "batch-agent"
SPARE = Path("..", "tmp")
"""For what an agent writes outside of its folder, from there."""
NOBODY = ModelEndpoint("http://127.0.0.1:9", "none", "none")
"""In place of an agent's, to see whether a configuration can be read."""
_DOOR = "door"
_MOST_OUTPUT = 32_000
_USUAL_OUTPUT = 8_192
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
    """What of it the user may say."""

    tools: Sequence[str] | None = None
    config: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raises SpecError."""
        tools = self.tools
        if tools is not None and (isinstance(tools, str) or not all(isinstance(name, str) and name for name in tools)):
            raise SpecError(
                f"tools must be names of OpenCode's tools, such as ['read', 'edit', 'bash']; got {tools!r}."
            )
        if self.config is not None and not isinstance(self.config, Mapping):
            raise SpecError(f"config must be a mapping, as opencode.json has it; got {self.config!r}.")
        try:
            orjson.dumps(self.config)
        except TypeError as error:
            raise SpecError(f"config must be what JSON can hold: {error}.") from error
        if asks := _asking(self.config or {}):
            raise SpecError(f"config has {asks} 'ask': nobody is there to be asked. Write 'allow' or 'deny'.")


def config_text(wishes: OpenCodeSettings, root: Path, shell: Path, prompt: Path | None, window: int | None) -> str:
    """`root`: where the agents' places are; `shell` runs their commands; `prompt`: the file that has it."""
    permission = _permission(wishes.tools, root)
    agent: dict[str, Any] = {"mode": "primary", "permission": permission}
    if prompt is not None:
        agent["prompt"] = f"{{file:{prompt}}}"  # not in here: what it says of {env:...} is meant for the model
    model = _from_door("model")
    ours = {
        **_SETTINGS,
        "model": f"{PROVIDER}/{model}",
        "small_model": f"{PROVIDER}/{model}",
        "shell": str(shell),
        "provider": {
            PROVIDER: {
                "name": PROVIDER,
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": _from_door("url"), "apiKey": _from_door("key")},
                "models": {model: {"name": model, "limit": _limit(window)}},
            }
        },
        "permission": permission,
        "agent": {AGENT: agent},
    }
    return orjson.dumps(_merged(ours, wishes.config or {})).decode()


def write_config(folder: Path, address: ModelEndpoint) -> None:
    """Writes what the configuration looks for beside an agent's folder."""
    beside = folder.parent
    door = beside / _DOOR
    door.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in (("url", address.openai), ("key", address.key), ("model", address.model)):
        (door / name).write_text(text)
    (beside / SPARE.name / "opencode").mkdir(parents=True, exist_ok=True)  # as it names its own
    if (folder / ".git").is_dir():
        # Else all copies are one project to OpenCode, and for each of them it has git look at all the others.
        (folder / ".git" / "opencode").write_text(secrets.token_hex(20))


def _from_door(name: str) -> str:
    return f"{{file:../{_DOOR}/{name}}}"


def _permission(tools: Sequence[str] | None, root: Path) -> dict[str, Any]:
    """Whatever is not denied is done without asking. The last rule that fits counts."""
    every: dict[str, Any] = {"*": "allow", "skill": {"*": "allow", "customize-opencode": "deny"}}
    return {
        **(every if tools is None else {"*": "deny", **dict.fromkeys(map(_governed, tools), "allow")}),
        "external_directory": {"*": "deny", f"{root}/*/{SPARE.name}/*": "allow"},
        "doom_loop": "allow",  # a program that repeats itself is ended by the limits of the run
        "question": "deny",
        "plan_enter": "deny",
        "plan_exit": "deny",
    }


def _governed(tool: str) -> str:
    """OpenCode has one permission for all that changes files."""
    return "edit" if tool in ("write", "patch", "apply_patch") else tool


def _limit(window: int | None) -> dict[str, int]:
    """OpenCode asks for that much output, and shortens a conversation that nears the window; 0: it never does."""
    if window is None:
        return {"context": 0, "output": _USUAL_OUTPUT}
    return {"context": window, "output": max(1, min(window // 4, _MOST_OUTPUT))}


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Theirs count more; what is a mapping in both is merged."""
    merged = dict(ours)
    for name, value in theirs.items():
        own = merged.get(name)
        merged[name] = _merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _asking(config: Mapping[str, Any]) -> str:
    """The first permission that asks."""
    agents = config.get("agent")
    each = agents.items() if isinstance(agents, Mapping) else ()
    places = {"permission": config, **{f"agent.{name}.permission": agent for name, agent in each}}
    for place, told in places.items():
        if isinstance(told, Mapping) and _asks(told.get("permission")):
            return place
    return ""


def _asks(permission: Any) -> bool:
    return permission == "ask" or (isinstance(permission, Mapping) and any(map(_asks, permission.values())))
