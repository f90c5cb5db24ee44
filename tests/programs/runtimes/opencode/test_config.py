"""What OpenCode is told."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_agent import SpecError
from batch_agent.programs.runtimes import OpenCodeRuntime
from batch_agent.programs.runtimes.opencode.opencode_config import OpenCodeSettings, config_text

NONE = OpenCodeSettings()
ROOT, SHELL = Path("/house/agents"), Path("/house/bash")


def settings(settings: OpenCodeSettings = NONE, prompt: Path | None = None, window: int | None = 8_000) -> Any:
    return json.loads(config_text(settings, ROOT, SHELL, prompt, window))


def test_permissions_ask_for_nothing_and_deny_access_outside_the_workspace() -> None:
    permission = settings()["permission"]
    assert "ask" not in json.dumps(permission)
    assert permission["*"] == "allow"
    assert permission["external_directory"] == {"*": "deny", "/house/agents/*/tmp/*": "allow"}
    assert settings()["agent"]["batch-agent"]["permission"] == permission


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ({"opencode_bin": "opencode"}, "'opencode_bin'. batch-agent 0.2 had this name; now write `command=`"),
        ({"working_dir": "."}, "write `workdir=`"),
        ({"extra_env": {}}, "write `env=`"),
        ({"context_limit": 32768}, "`context_tokens=` of `BatchAgent.run`"),
        ({"output_limit": 4096}, "`max_tokens=` of `BatchAgent.run`"),
        ({"temperature": True}, "`temperature=`, a number, of `BatchAgent.run`"),
        ({"tool_call": True}, "leave it out"),
        ({"model_alias": "m"}, "leave it out"),
    ],
)
def test_arguments_of_batch_agent_0_2_are_refused_with_their_new_names(old: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        OpenCodeRuntime("vllm://gpu:8000", "m", **old)


def test_a_runtime_can_be_copied_pickled_and_compared() -> None:
    runtime = OpenCodeRuntime("vllm://gpu:8000", "m", workdir=".", tools=("read",))
    assert pickle.loads(pickle.dumps(runtime)) == copy.deepcopy(runtime) == runtime
    assert replace(runtime, model="n").workdir == "."
    with pytest.raises(TypeError, match="wordir"):
        OpenCodeRuntime(wordir=".")  # type: ignore[call-arg]


def test_only_the_named_opencode_tools_may_be_used() -> None:
    permission = settings(OpenCodeSettings(tools=("read", "write")))["permission"]
    assert {name for name, rule in permission.items() if rule == "allow"} == {"read", "edit", "doom_loop"}
    assert next(iter(permission)) == "*"
    assert permission["*"] == "deny"


def test_a_prompt_is_read_from_a_file_so_that_opencode_substitutes_nothing_in_it() -> None:
    assert settings(prompt=Path("/house/prompt"))["agent"]["batch-agent"]["prompt"] == "{file:/house/prompt}"
    assert "prompt" not in settings()["agent"]["batch-agent"]


@pytest.mark.parametrize(
    ("window", "limit"),
    [(None, (0, 8_192)), (4_096, (4_096, 1_024)), (1_000_000, (1_000_000, 32_000)), (2, (2, 1))],
)
def test_the_output_limit_leaves_room_in_the_window(window: int | None, limit: tuple[int, int]) -> None:
    [model] = settings(window=window)["provider"]["batch"]["models"].values()
    assert (model["limit"]["context"], model["limit"]["output"]) == limit


def test_the_users_opencode_config_overrides_only_its_own_keys() -> None:
    config = {"snapshot": True, "agent": {"batch-agent": {"temperature": 0.1}}, "mcp": {"x": {"type": "remote"}}}
    result = settings(OpenCodeSettings(config=config))
    assert result["snapshot"] is True
    assert result["mcp"] == config["mcp"]
    assert result["agent"]["batch-agent"]["temperature"] == 0.1
    assert result["agent"]["batch-agent"]["mode"] == "primary"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "threads"}, "mode must be"),
        ({"tools": "bash"}, "tools must be a list of names"),
        ({"tools": ["bash", 3]}, "tools must be a list of names"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"config": ["x"]}, "config must be a mapping"),
        ({"config": {"x": object()}}, "config must be JSON-serializable"),
        ({"config": {"permission": {"bash": {"git *": "ask"}}}}, "permission to 'ask', but no user can be asked"),
        ({"config": {"agent": {"plan": {"permission": "ask"}}}}, "agent.plan.permission to 'ask'"),
        ({"workdir": "no/such/folder"}, "no/such/folder"),
        ({"workdir": 3}, "workdir must be a directory"),
        ({"command": "no-such-opencode"}, "no-such-opencode.*npm install -g opencode-ai"),
    ],
)
def test_an_invalid_opencode_runtime_is_rejected_at_once(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        OpenCodeRuntime(**{"command": "git", **options}).check()


def test_without_git_the_opencode_runtime_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "opencode"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match="Install git"):
        OpenCodeRuntime().check()


def test_the_runtime_description_is_json_with_what_affects_answers() -> None:
    runtime = OpenCodeRuntime(model="m", workdir="/", tools=("b", "a"), prompt="p", config={"x": 1}, mode="process")
    assert json.loads(json.dumps(runtime.description)) == {
        "runtime": "opencode",
        "workdir": "/",
        "tools": ["a", "b"],
        "prompt": "p",
        "config": {"x": 1},
    }
