"""[backends.NAME] in batch.toml: keys from the environment, and nowhere else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.forked_programs import Call

from batch_agent import Backend, SpecError
from batch_agent.cli.commands.worker import WorkerJob
from batch_agent.cli.config_file import backend_of
from batch_agent.cli.options.command_options import CommandOptions
from batch_agent.cli.options.json_values import parse_backends
from batch_agent.cli.saved_command import read_command
from batch_agent.cli.shared_run import SharedRun
from batch_agent.cli.worker_manifest import WorkerManifest
from batch_agent.sim import Script, SimConfig, SimServer

KEY, TOKEN = "profile-key-0123456789abcdef", "gateway-token-0123456789abcdef"
PROFILE = """
task = "Say {{text}}"
inputs = "in.jsonl"
backend = "prod"

[backends.prod]
url = "groq://"
base_url = "{url}"
model = "sim"
api_key = "${{TEAM_KEY}}"
headers = {{ X-Gateway = "${{GATEWAY_TOKEN}}", X-Title = "reviews" }}
rpm = 100000
"""


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, sim: SimServer) -> Path:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "batch.toml").write_text(PROFILE.format(url=f"{sim.url}/v1"))
    return tmp_path


@pytest.mark.slow
def test_a_run_uses_the_profile_and_writes_its_secrets_nowhere(folder: Path, call: Call) -> None:
    secrets = {"TEAM_KEY": KEY, "GATEWAY_TOKEN": TOKEN}
    done = call("run", "--log-requests", "log.jsonl", cwd=folder, **secrets)
    assert done.returncode == 0, done.stderr
    checked = call("doctor", "prod", cwd=folder, **secrets)
    assert "key           from the environment variable TEAM_KEY, ***cdef" in checked.stdout
    resumed = call("resume", "results.jsonl.checkpoint", cwd=folder, **secrets)
    assert resumed.returncode == 0, resumed.stderr
    assert read_command(folder / "results.jsonl.checkpoint")[1]["backend"] == "prod"
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    headers = logged[0]["headers"]
    assert (headers["Authorization"], headers["X-Gateway"], headers["X-Title"]) == ("Bearer ***", "***", "reviews")
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    printed = "".join(each.stdout + each.stderr for each in (done, checked, resumed)).encode()
    assert b"results" in written
    for secret in (KEY, TOKEN):
        assert secret.encode() not in written + printed


def test_a_variable_that_is_not_set_is_named(folder: Path, call: Call) -> None:
    done = call("run", cwd=folder, TEAM_KEY=KEY, GATEWAY_TOKEN="")
    assert done.returncode == 2
    assert "needs the environment variable GATEWAY_TOKEN, which is not set" in done.stderr


def test_a_name_that_the_file_does_not_have_is_refused(folder: Path, call: Call) -> None:
    done = call("run", "--backend", "prdo", cwd=folder)
    assert done.returncode == 2
    assert "'prdo' is neither a URL nor one of prod. Did you mean 'prod'?" in done.stderr


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"prod": "openai://"}, "must be a table with a url"),
        ({"prod": {"url": "openai://", "key": "x"}}, "unknown setting 'key'"),
        ({"prod": {"url": "openai://", "api_key": KEY}}, "must not be in a file"),
        ({"prod": {"url": f"http://me:{KEY}@host/v1"}}, "url is a secret"),
    ],
)
def test_a_profile_with_a_mistake_is_refused(table: object, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_backends([json.dumps(table)])
    assert words in str(refused.value)
    assert KEY not in str(refused.value)


def test_profiles_are_backends_of_models_too() -> None:
    tables = ['{"one": {"url": "groq://", "model": "m"}, "two": {"url": "mistral://"}}']
    options = CommandOptions(task="{x}", models=["small=one", "large=two", "own=vllm://h:1"], backends=tables)
    assert options._models() == {
        "small": Backend("groq://", model="m"),
        "large": Backend("mistral://"),
        "own": "vllm://h:1",
    }


def manifest(backend: str, tables: dict[str, object]) -> WorkerManifest:
    options = CommandOptions(task="{x}", inputs="in.jsonl", backend=backend, backends=[json.dumps(tables)])
    return WorkerManifest.from_json(WorkerManifest.of(options, 15.0).to_json())


def test_a_worker_gets_the_settings_of_the_run_without_a_key() -> None:
    run = manifest("gpu", {"gpu": {"url": "vllm://gpu1:8000", "rpm": 60, "headers": {"X-Title": "reviews"}}})
    spec = WorkerJob(SharedRun("redis://there", "x"), {}, []).spec(run)
    assert spec.backend == Backend("vllm://gpu1:8000", rpm=60, headers={"X-Title": "reviews"})
    assert spec.limits.rpm == 60
    assert run.flags() == []


def test_a_worker_reads_its_key_only_for_a_backend_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that can write to Redis must not learn a variable of the worker's environment."""
    run = manifest("prod", {"prod": {"url": "vllm://gpu1:8000", "headers": {"X-Token": "${AWS_SECRET_ACCESS_KEY}"}}})
    assert run.flags() == ["--backend", "prod"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as refused:
        WorkerJob(SharedRun("redis://there", "x"), {}, []).spec(run)
    assert "would use your AWS_SECRET_ACCESS_KEY" in str(refused.value)
    assert "as [backends.prod], and add --backend prod" in str(refused.value)
    (tmp_path / "batch.toml").write_text('[backends.prod]\nurl = "groq://"\napi_key = "${MY_KEY}"\n')
    own = backend_of("prod")
    spec = WorkerJob(SharedRun("redis://there", "x"), {"backend": own}, []).spec(run)
    assert spec.backend == Backend("groq://", api_key="${MY_KEY}")
