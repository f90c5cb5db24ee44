"""Programs of the user's as agents."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.runtime_contexts import FakeModelAccess, runtime_context

from batch_agent import SpecError
from batch_agent.core.program_runtime import AgentSession, ModelEndpoint, ProgramFailed
from batch_agent.programs.runtimes import ProcessRuntime
from batch_agent.programs.runtimes.command_runtime import CommandTemplate
from batch_agent.programs.runtimes.environment import user_environment

PYTHON = [sys.executable, "-S", "-c"]
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), sys.stdin.read()]))"


@asynccontextmanager
async def seated(folder: Path, code: str, *words: str, **options: Any) -> AsyncIterator[AgentSession]:
    runtime = ProcessRuntime([*PYTHON, code, *words], **options)
    runtime.check()
    async with runtime.open(runtime_context(folder / "runtime_context", FakeModelAccess())) as crew:
        seat = await crew.open_session("one")
        try:
            yield seat
        finally:
            await seat.aclose()


async def display_path(seat: AgentSession, task: str) -> tuple[list[str], dict[str, str], str, str]:
    arguments, environment, cwd, stdin = json.loads((await seat.prompt(task)).text)
    return arguments, environment, cwd, stdin


async def test_a_command_gets_its_task_its_directory_and_the_model_endpoint(tmp_path: Path) -> None:
    env = {"WHERE": "{openai_url} {model}", "HTTPS_PROXY": "http://proxy"}
    async with seated(tmp_path, SHOW, "{task}", "{folder}", "{other} {{}} {key}", env=env) as seat:
        arguments, environment, cwd, stdin = await display_path(seat, "do {key} 'it'")
    assert arguments == ["do {key} 'it'", ".", "{other} {{}} key-of-one"]
    assert cwd == "."
    assert stdin == ""
    assert environment["WHERE"] == "http://127.0.0.1:9/v1 some/model"
    assert environment["OPENAI_BASE_URL"] == "http://127.0.0.1:9/v1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert environment["OPENAI_API_KEY"] == environment["ANTHROPIC_API_KEY"] == "key-of-one"
    assert environment["PWD"] == "."
    assert "127.0.0.1" in environment["NO_PROXY"].split(",")


async def test_without_a_task_placeholder_the_task_comes_by_stdin(tmp_path: Path) -> None:
    async with seated(tmp_path, SHOW, env={"OPENAI_API_KEY": "my own"}) as seat:
        _, environment, _, stdin = await display_path(seat, "do it")
    assert stdin == "do it"
    assert environment["OPENAI_API_KEY"] == "my own"


async def test_a_second_prompt_repeats_the_whole_conversation(tmp_path: Path) -> None:
    code = "import sys; said = sys.stdin.read(); open('asked', 'a').write(said + '\\n--\\n'); print(len(said))"
    async with seated(tmp_path, code) as seat:
        first = await seat.prompt("do it")
        second = await seat.prompt("not so")
    assert first.text == "5"
    assert second.changes is not None
    asked = [line[1:] for line in second.changes.patch.splitlines() if line.startswith("+") and line[1:2] != "+"]
    assert asked == ["do it", "--", "do it", "", "Your answer was:", "5", "", "not so", "--"]


async def test_an_answer_may_be_in_a_file_outside_the_workspace(tmp_path: Path) -> None:
    code = "import sys; print('chatter'); open('../said', 'w').write(sys.stdin.read() + '\\n')"
    async with seated(tmp_path, code, answer="../said") as seat:
        got = await seat.prompt("the answer")
    assert got.text == "the answer"
    assert got.changes is not None
    assert not got.changes.files


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('chatter'); sys.exit('no such model')", "exit status 1: no such model"),
        ("print('only this'); raise SystemExit(4)", "exit status 4: only this"),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9: no output"),
        ("print('x' * 9_000_000)", "more than 8000000 bytes"),
    ],
)
async def test_a_failed_program_is_reported_with_the_end_of_its_output(tmp_path: Path, code: str, why: str) -> None:
    async with seated(tmp_path, code) as seat:
        with pytest.raises(ProgramFailed, match=why) as failed:
            await seat.prompt("do it")
    assert failed.value.retryable == ("-9" in why)


@pytest.mark.parametrize(
    "code", ["pass", "import os; os.symlink('/etc/passwd', 'said')", "import os; os.mkdir('said')"]
)
async def test_an_answer_that_was_not_written_is_a_failure(tmp_path: Path, code: str) -> None:
    async with seated(tmp_path, code, answer="said") as seat:
        with pytest.raises(ProgramFailed, match="did not write its answer to 'said'"):
            await seat.prompt("do it")


async def test_cancelling_a_program_kills_its_whole_process_tree(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    note = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')"
    code = f"import os, time; os.fork() or os.setsid(); {note}; time.sleep(600)"
    async with seated(tmp_path, code) as seat:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(seat.prompt("do it"))
            async with asyncio.timeout(60):
                while not (pids.exists() and len(pids.read_text().split()) == 2):
                    await asyncio.sleep(0.01)
            work.cancel()
        for pid in pids.read_text().split():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("aider", {}, "command must be a list of strings"),
        ([], {}, "command must be a list of strings"),
        (["no-such-program"], {}, "'no-such-program' is not installed"),
        (["sh"], {"env": {"PATH": "/nowhere"}}, "'sh' is not installed"),
        (["sh"], {"env": {"A": 1}}, "env must be a mapping of strings to strings"),
        (["sh"], {"answer": "/tmp/x"}, "answer must be"),
        (["sh"], {"workdir": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_an_invalid_process_runtime_is_rejected_at_once(command: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        ProcessRuntime(command, **options).check()


def test_the_runtime_description_contains_no_possible_key() -> None:
    runtime = ProcessRuntime(["sh", "-c", "{task}"], {"SECRET": "hush"})
    assert runtime.name == "sh"
    assert "SECRET" in json.dumps(runtime.description)
    assert "hush" not in json.dumps(runtime.description)
    assert "hush" not in repr(runtime)


def test_placeholders_inside_inserted_values_are_not_replaced() -> None:
    words = CommandTemplate(ModelEndpoint("http://u", "{task}", "m"), Path("/f"), "{key}{folder}")
    assert words.command(["{task}{key}", "{folder}"]) == ["{key}{folder}{task}", "/f"]


SECRETS = [
    "OPENAI_API_KEY",
    "openai_api_key",
    "API_KEY",
    "apikey",
    "MISTRAL_KEY",
    "GROQ_API_KEY",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "Hf_Token",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "aws_bearer_token_bedrock",
    "AZURE_OPENAI_KEY",
    "AZURE_CLIENT_ID",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "DB_PASSWORD",
    "PGPASSWORD",
    "MYSQL_PWD",
    "DB_PASS",
    "NPM_AUTH",
    "GITLAB_PAT",
    "CLIENT_SECRET",
    "SECRETS",
    "STRIPE_SECRET_KEY_LIVE",
    "SSH_PASSPHRASE",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_ORGANIZATION",
    "VAULT_TOKEN_2",
    "SLACK_WEBHOOK_URL",
    "SESSION_COOKIE",
    "JWT",
]
HARMLESS = [
    "PATH",
    "HOME",
    "PWD",
    "OLDPWD",
    "LANG",
    "LC_ALL",
    "TERM",
    "SHELL",
    "TMPDIR",
    "KEYBOARD_LAYOUT",
    "TOKENIZERS_PARALLELISM",
    "SSH_AUTH_SOCK",
    "EDITOR",
    "CARGO_HOME",
    "XAUTHORITY",
    "GIT_AUTHOR_NAME",
    "COMPASS",
    "PATTERN",
    "AUTHOR",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
]


def test_variables_that_look_like_secrets_are_removed_in_any_spelling() -> None:
    got = user_environment(dict.fromkeys([*SECRETS, *HARMLESS], "value"))
    assert sorted(got.keys() - {"NO_PROXY", "no_proxy"}) == sorted(HARMLESS)


def test_a_url_with_a_password_is_a_secret_unless_it_is_a_proxy() -> None:
    kept = {"SERVER": "https://host/a:b@c", "HTTP_PROXY": "http://me:pw@proxy:3128", "WORDS": "see https://a:b@c"}
    got = user_environment({**kept, "DATABASE_URL": "postgres://me:pw@db/x", "BROKER": "amqp+ssl://:pw@host"})
    assert {name: got[name] for name in got if name.lower() != "no_proxy"} == kept


async def test_a_real_program_gets_only_the_given_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hush")
    async with seated(tmp_path, SHOW, env={"GH_TOKEN": "given"}) as seat:
        _, environment, _, _ = await display_path(seat, "do it")
    assert [name for name, value in environment.items() if value == "hush"] == []
    assert environment["GH_TOKEN"] == "given"


def test_a_program_environment_has_no_keys_and_keeps_the_users_other_variables() -> None:
    theirs = {"PATH": "/bin", "HTTP_PROXY": "http://p", "no_proxy": "intern,localhost"}
    ours = {"OPENAI_API_KEY": "1", "GROQ_API_KEY": "2", "ANTHROPIC_AUTH_TOKEN": "3", "OPENCODE_CONFIG": "4"}
    others: Mapping[str, str] = {"CLAUDECODE": "1", "CLAUDE_CODE_USE_BEDROCK": "1", "OPENAI_BASE_URL": "http://x"}
    got = user_environment({**theirs, **ours, **others})
    assert got == {**theirs, "no_proxy": "intern,localhost,127.0.0.1", "NO_PROXY": "127.0.0.1,localhost"}
