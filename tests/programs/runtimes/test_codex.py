"""CodexRuntime on a stand-in that does what it is told."""

import json
import shlex
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runtime_contexts import runtime_context

from batch_agent import CodexRuntime, SpecError
from batch_agent.cli.import_by_name import load_runtime
from batch_agent.core.program_runtime import AgentSession, ProgramFailed
from batch_agent.programs.runtimes.codex.codex_config import to_toml

FAKE = Path(__file__).parents[2] / "support" / "fake_codex.py"


@pytest.fixture
def runtime(tmp_path: Path) -> CodexRuntime:
    program = tmp_path / "codex"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-S", "-E", str(FAKE)])} "$@"\n')
    program.chmod(0o755)
    return CodexRuntime(command=str(program))


@asynccontextmanager
async def session(runtime: CodexRuntime, folder: Path) -> AsyncIterator[AgentSession]:
    runtime.check()
    async with runtime.open(runtime_context(folder / "context")) as factory:
        seat = await factory.open_session("one")
        try:
            yield seat
        finally:
            await seat.aclose()


async def test_the_last_message_is_the_answer_and_changes_are_reported(runtime: CodexRuntime, tmp_path: Path) -> None:
    async with session(runtime, tmp_path) as seat:
        result = await seat.prompt("NOISE\nSAY let me see\nWRITE new.txt hello\nSAY done in new.txt\nNOISE")
    assert result.text == "done in new.txt"
    assert result.changes is not None
    assert [(file.path, file.kind) for file in result.changes.files] == [("new.txt", "added")]
    assert (result.transcript, result.calls, result.turns) == ((), (), 0)  # they are those of the requests


async def test_a_second_prompt_resumes_the_session(runtime: CodexRuntime, tmp_path: Path) -> None:
    async with session(runtime, tmp_path) as seat:
        first = (await seat.prompt("TELL session")).text
        second = (await seat.prompt("TELL session")).text
    assert first == "exec --json --skip-git-repo-check -"
    assert second.startswith("exec resume thread-")
    assert second.endswith(" --json --skip-git-repo-check -")


async def test_an_agent_has_a_home_and_a_key_of_its_own(
    runtime: CodexRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("CODEX_API_KEY", "secret")
    told = ["env CODEX_HOME", "env CODEX_API_KEY", "env BATCH_AGENT_CODEX_KEY", "env MINE"]
    async with session(replace(runtime, env={"MINE": "yes"}), tmp_path) as seat:
        home, user_key, key, mine = [(await seat.prompt(f"TELL {what}")).text for what in told]
    assert home.startswith(str(tmp_path / "context"))
    assert (user_key, key, mine) == ("nothing", "key-of-one", "yes")


async def test_the_configuration_names_the_gateway_and_is_merged_with_the_users(
    runtime: CodexRuntime, tmp_path: Path
) -> None:
    own = {"sandbox_mode": "workspace-write", "features": {"goals": True}, "mcp_servers": {"a b": {"args": ["x"]}}}
    async with session(replace(runtime, config=own, prompt="Be brief."), tmp_path) as seat:

        async def configured(name: str) -> Any:
            return json.loads((await seat.prompt(f"TELL config {name}")).text)

        provider = (await configured("model_providers"))["batch"]
        assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:9/v1", "responses")
        assert provider["request_max_retries"] == provider["stream_max_retries"] == 0
        assert (await configured("model"), await configured("model_context_window")) == ("some/model", 8000)
        assert await configured("sandbox_mode") == "workspace-write"
        features = await configured("features")
        assert (features["goals"], features["apps"]) == (True, False)
        assert await configured("mcp_servers") == own["mcp_servers"]
        assert Path(await configured("model_instructions_file")).read_text() == "Be brief."


async def test_a_failed_turn_is_reported_with_its_own_message(runtime: CodexRuntime, tmp_path: Path) -> None:
    async with session(runtime, tmp_path) as seat:
        with pytest.raises(ProgramFailed, match="exit status 1: the model is on fire"):
            await seat.prompt("SAY wait\nFAIL the model is on fire")
        with pytest.raises(ProgramFailed, match="exit status 3: it is broken") as raised:
            await seat.prompt("EXIT 3")
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": "no-such-codex"}, "Install Codex with `npm install -g @openai/codex`, or pass command=PATH"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"config": ["model"]}, "config must be a mapping in the format of Codex's config.toml"),
        ({"config": {"model": None}}, "None has no form in TOML"),
        ({"env": {"A": 1}}, "env must be a mapping of strings to strings"),
        ({"workdir": "no-such-folder"}, "no-such-folder"),
    ],
)
def test_an_invalid_option_is_rejected(runtime: CodexRuntime, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(runtime, **options).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": {"FAKE_VERSION": "codex-cli 0.99.0"}}, "is Codex 0.99.0; 0.169.0 or newer is required"),
        ({"env": {"FAKE_VERSION": "hello"}}, "is not a known version of Codex: `--version` printed 'hello'"),
        ({"config": {"refused": "no such model"}}, "Codex rejected its configuration; check `config`: Error: no such"),
    ],
)
async def test_what_codex_rejects_is_an_error_before_any_session(
    runtime: CodexRuntime, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        async with session(replace(runtime, **options), tmp_path):
            pass


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@given(values)
def test_a_value_written_as_toml_is_read_back_unchanged(value: Any) -> None:
    assert tomllib.loads(f"it = {to_toml(value)}")["it"] == value


def test_the_command_line_names_the_runtime() -> None:
    runtime = load_runtime("codex", Path("somewhere"))
    assert isinstance(runtime, CodexRuntime)
    assert runtime.workdir == Path("somewhere")
    with pytest.raises(SpecError, match="--workdir needs --runtime opencode or codex"):
        load_runtime(None, Path("somewhere"))


def test_a_checkpoint_is_of_the_same_settings_but_not_of_secrets(runtime: CodexRuntime) -> None:
    described = replace(runtime, env={"GH_TOKEN": "secret"}, config={"a": 1}).description
    assert described["env"] == ["GH_TOKEN"]
    assert (described["runtime"], described["config"]) == ("codex", {"a": 1})
