"""batch-agent run --fallback: two servers, of which the first cannot answer everything."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.forked_programs import Program, Programs
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import SpecError
from batch_agent.cli.app import main
from batch_agent.cli.commands.worker import WorkerJob
from batch_agent.cli.options.command_options import CommandOptions
from batch_agent.cli.shared_run import SharedRun
from batch_agent.cli.worker_manifest import WorkerManifest
from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def sims() -> Iterator[tuple[str, str]]:
    with (
        SimServer(SimConfig(model="small", zero_latency=True, max_model_len=256), Script(answer_tokens=6)) as small,
        SimServer(SimConfig(model="large", zero_latency=True), Script(answer_tokens=6)) as large,
    ):
        yield small.url, large.url


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def models(path: str) -> list[object]:
    return [
        row["model"]
        for row in sorted(map(json.loads, Path(path).read_text().splitlines()), key=lambda row: row["index"])
    ]


@pytest.mark.slow
def test_inputs_that_one_server_cannot_answer_go_to_the_next(call: Call, sims: tuple[str, str]) -> None:
    texts = ["short", "long " * 400, "word"]
    Path("in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ("run", "in.jsonl", "--task", "Rate {text}", "--max-tokens", "16", "--out", "out.jsonl")
    backends = ("--backend", sims[0], "--fallback", f"large={sims[1]}")
    status, _, said = call(*words, *backends)
    assert status == 0, said
    assert models("out.jsonl") == ["small", "large", "small"]
    assert "fallback 1 (large): 1 of 1 agent answered" in said
    status, _, said = call(*words, "--backend", "http://127.0.0.1:1/v1", *backends[2:], "--model", "small")
    assert status == 0, said
    status, _, said = call("resume", "out.jsonl.checkpoint")
    assert status == 0, said
    status, _, said = call(*words, "--backend", sims[0], "--fresh")
    assert status != 0
    assert not Path("out.jsonl.checkpoint/fallback-1").exists()


def test_a_batch_toml_names_fallbacks(call: Call, sims: tuple[str, str]) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": "short"}) + "\n")
    Path("batch.toml").write_text(
        f'''inputs = "in.jsonl"
task = "Rate {{text}}"
backend = "http://127.0.0.1:1/v1"
fallback = ["{sims[1]}"]
out = "out.jsonl"
'''
    )
    status, _, said = call("run")
    assert status == 0, said
    assert models("out.jsonl") == ["large"]


def until(is_so: Callable[[], bool], *running: Program) -> None:
    end = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < end, "\n".join(each.stderr.read_text() for each in running)
        time.sleep(0.02)


def _answers(folder: Path) -> int:
    out = folder / "results.jsonl"
    return len(out.read_text().splitlines()) if out.exists() else 0


def spec(options: CommandOptions, **overrides: object) -> list[object]:
    """The fallbacks of a worker."""
    manifest = WorkerManifest.from_json(WorkerManifest.of(options, 15.0).to_json())
    return list(WorkerJob(SharedRun("redis://there", "x"), overrides, []).spec(manifest).fallback)


def options(*fallback: str) -> CommandOptions:
    return CommandOptions(task="{it}", backend="http://first", fallback=list(fallback))


def test_a_worker_has_the_fallbacks_of_the_run_unless_they_need_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-machine")
    plain = options("large", "http://second", "m=http://third")
    assert spec(plain) == ["large", "http://second", "m=http://third"]
    assert "--fallback" not in WorkerManifest.of(plain, 15.0).flags()
    keyed = options("large", "gpt=openai://")
    assert WorkerManifest.of(keyed, 15.0).flags()[-3:] == ["--fallback", "large", "gpt=openai://"]
    with pytest.raises(SpecError, match=r"would use your OPENAI_API_KEY.* add --fallback large gpt=openai://"):
        spec(keyed)
    assert spec(keyed, fallback=["large", "gpt=openai://"]) == ["large", "gpt=openai://"]
    with pytest.raises(SpecError, match="The run has 2 fallbacks, and --fallback names 1"):
        spec(keyed, fallback=["gpt=openai://"])


def test_a_fallback_with_a_password_is_not_stored() -> None:
    secret = options("http://user:hunter2@second")
    assert b"hunter2" not in WorkerManifest.of(secret, 15.0).to_json()
    with pytest.raises(SpecError, match=r"contained a password, which is not stored. Add --fallback"):
        spec(secret)
    assert spec(secret, fallback=["http://user:hunter2@second"]) == ["http://user:hunter2@second"]


@pytest.fixture
def terminal() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.fixture
def helper() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.mark.slow
def test_a_shared_run_with_two_workers_changes_over_when_its_server_goes_down(
    redis_server: RedisServer, programs: Programs, helper: Programs, terminal: Programs, tmp_path: Path
) -> None:
    name, agents = f"run-{uuid4().hex[:8]}", 60
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "note {n}"}}\n' for n in range(agents)))
    store = ("--store", redis_server.url, "--run", name)
    with (
        SimServer(SimConfig(model="small", step_base_ms=20), Script(answer_tokens=8)) as small,
        SimServer(SimConfig(model="large", zero_latency=True), Script(answer_tokens=8)) as large,
    ):
        words = ("run", "in.jsonl", "--task", "Rate {text}", "--backend", small.url, "--fallback", large.url, *store)
        caller = programs.start_command(
            *words, "--max-inflight", "3", "--max-retries", "1", "--lease", "3", cwd=tmp_path
        )
        workers = [each.start_command("worker", *store, cwd=tmp_path) for each in (helper, terminal)]
        until(lambda: _answers(tmp_path) >= 6, caller, *workers)
        small.stop()
        assert [each.wait() for each in (caller, *workers)] == [0, 0, 0], caller.stderr.read_text()
    said = caller.stderr.read_text()
    found = models(str(tmp_path / "results.jsonl"))
    assert len(found) == agents
    assert set(found) == {"small", "large"}
    assert "fallback 1" in said
    assert "This worker ran" in workers[0].stderr.read_text()
    again = programs.start_command("resume", "results.jsonl.checkpoint", cwd=tmp_path)
    assert again.wait() == 0, again.stderr.read_text()
    assert models(str(tmp_path / "results.jsonl")) == found
