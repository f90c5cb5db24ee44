"""`score`, `compare` and `lint` of a run on a real Redis server."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, SpecError, StoreError, Tool, exact
from batch_agent.cli.commands.compare import compare
from batch_agent.cli.commands.export import export
from batch_agent.cli.commands.lint import lint
from batch_agent.cli.commands.report import report
from batch_agent.cli.commands.score import score
from batch_agent.cli.options.command_options import CommandOptions
from batch_agent.cli.shared_run import SharedRun
from batch_agent.cluster.redis.redis_coordinator import runs_known
from batch_agent.core.requests import Request
from batch_agent.observe.score_file import load_scores
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, call, say

__all__ = ["redis_server"]

ROWS = [{"it": "a", "label": "A"}, {"it": "b", "label": "B"}]


def echo(*wrong: str) -> ScriptedBackend:
    """Answers with the input in capitals, but for those that it gets wrong."""

    def answer(request: Request) -> Any:
        text = str(getattr(request.messages[0], "text", ""))
        return say("?" if text in wrong else text.upper())

    return ScriptedBackend(answer)


@pytest.fixture
async def name(redis_server: RedisServer) -> str:
    return await finished(redis_server, echo("b"))


async def finished(server: RedisServer, backend: ScriptedBackend, **options: Any) -> str:
    name = f"run-{uuid4().hex}"
    await BatchAgent.run(task="{it}", inputs=ROWS, store=server.url, run_id=name, backend=backend, **options)
    return name


def exported(server: RedisServer, name: str, folder: Path) -> list[dict[str, Any]]:
    assert export(server.url, run=name, out=folder / "rows.jsonl") == 0
    return [orjson.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]


async def test_the_server_keeps_the_scores_for_exports_and_reports_elsewhere(
    redis_server: RedisServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(score, redis_server.url, run=name, score=["exact:label"])
    assert capsys.readouterr().out.startswith("Score exact: 0.500")
    await asyncio.to_thread(score, redis_server.url, run=name, score=["contains:label"])
    rows = await asyncio.to_thread(exported, redis_server, name, tmp_path)
    assert [row["scores"] for row in rows] == [
        {"exact": 1.0, "contains": 1.0},
        {"exact": 0.0, "contains": 0.0},
    ]
    await asyncio.to_thread(report, redis_server.url, run=name, out=tmp_path / "report.html")
    assert "exact" in (tmp_path / "report.html").read_text()
    await BatchAgent.copy_run(redis_server.url, name, tmp_path / "copy")
    assert len(load_scores(tmp_path / "copy")) == 2


async def test_the_scores_of_a_run_are_read_from_its_server(redis_server: RedisServer, tmp_path: Path) -> None:
    name = await finished(redis_server, echo("b"), score=[exact("label")], checkpoint_dir=tmp_path / "mine")
    rows = await asyncio.to_thread(exported, redis_server, name, tmp_path)
    assert [row["scores"] for row in rows] == [{"exact": 1.0}, {"exact": 0.0}]


async def test_the_verdicts_of_a_judge_are_kept_with_the_run_and_deleted_with_it(
    redis_server: RedisServer, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = redis_server.url
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=0)) as sim:
        await asyncio.to_thread(score, url, run=name, score=["judge:It is right."], backend=sim.url)
        said = capsys.readouterr().out
        await asyncio.to_thread(score, url, run=name, score=["judge:It is right."], backend=sim.url)
    assert said.startswith("Score judge: ")
    assert capsys.readouterr().out.splitlines()[0] == said.splitlines()[0]
    assert f"{name}.judge.judge" in await runs_known(url)
    await SharedRun(url, name).delete()
    assert not [run for run in await runs_known(url) if run.startswith(name)]


async def test_runs_on_a_server_are_compared_with_each_other_and_with_files(
    redis_server: RedisServer, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, url = await finished(redis_server, echo()), redis_server.url
    await asyncio.to_thread(compare, url, run=[name, other], score=["exact:label"])
    both = capsys.readouterr().out
    assert f"run {name} at {url}" in both
    assert f"run {other} at {url}" in both
    assert "0.500 -> 1.000" in both
    await asyncio.to_thread(compare, url, url, run=[name, other], score=["exact:label"])
    assert capsys.readouterr().out == both
    await BatchAgent.run(task="{it}", inputs=ROWS, backend=echo(), checkpoint_dir=tmp_path / "here")
    await asyncio.to_thread(compare, tmp_path / "here", url, run=[name], json=True)
    [found] = orjson.loads(capsys.readouterr().out)
    assert len(found["changed"]) == 1


async def test_a_comparison_is_in_the_report_of_the_run_on_the_server(
    redis_server: RedisServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await finished(redis_server, echo())
    monkeypatch.chdir(tmp_path)
    await asyncio.to_thread(compare, redis_server.url, run=[name, other], report=True)
    assert f"run {name} at" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    await asyncio.to_thread(report, redis_server.url, run=other)
    assert f"run {name} at" in (tmp_path / "report.html").read_text()


async def test_the_models_of_a_run_on_a_server_are_scored_and_compared(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Request) -> Any:
        text = str(getattr(request.messages[0], "text", ""))
        return say("?" if request.model == "small" and text == "b" else text.upper())

    name, url = await finished(redis_server, ScriptedBackend(answer), models=["small", "a/large"]), redis_server.url
    await asyncio.to_thread(score, url, run=name, score=["exact:label"])
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" [")[0] for line in said] == ["Score a/large exact: 1.000", "Score small exact: 0.500"]
    await asyncio.to_thread(compare, url, run=[name])
    compared = capsys.readouterr().out
    assert "exact: 1.000 -> 0.500" in compared or "exact: 0.500 -> 1.000" in compared
    with pytest.raises(StoreError, match=rf"Choose the one to export: .*--run {name}\.small-") as error:
        await asyncio.to_thread(export, url, run=name)
    small = next(word for word in str(error.value).split() if word.startswith(f"{name}.small"))
    rows = await asyncio.to_thread(exported, redis_server, small, tmp_path)
    assert [row["scores"] for row in rows] == [{"exact": 1.0}, {"exact": 0.0}]


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"]])
def test_each_server_needs_the_name_of_its_run(names: list[str]) -> None:
    with pytest.raises(SpecError, match="compare needs the name of the run at each Redis server"):
        compare("redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0", run=names)


def test_a_directory_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--run is for a run on a server"):
        score(tmp_path, run="mine", score=["exact:label"])
    with pytest.raises(SpecError, match="Got 0 URLs of Redis servers, and 1 name"):
        compare(tmp_path, run=["mine"])


async def test_an_unknown_run_is_named(redis_server: RedisServer) -> None:
    with pytest.raises(StoreError, match="There is no run 'nobody' at "):
        await asyncio.to_thread(score, redis_server.url, run="nobody", score=["exact:label"])


def test_lint_reads_what_agents_of_a_run_on_a_server_shared(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(request: Request) -> Any:
        return say("done") if len(request.messages) > 1 else call("read_file", path="manual.txt")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "manual.txt").write_text("Read this first. " * 400)
    inputs = tmp_path / "in.jsonl"
    inputs.write_bytes(b"\n".join(map(orjson.dumps, ROWS)))
    name = asyncio.run(finished(redis_server, ScriptedBackend(act), tools=[Tool.read_file]))
    options = CommandOptions(task="{it}", inputs=str(inputs), tools=["read_file"])
    lint(options)
    assert "Shared results" not in capsys.readouterr().out
    lint(options, checkpoint=redis_server.url, run=name)
    assert "Shared results: 1 tool result was read by 2 agents" in capsys.readouterr().out
    with pytest.raises(SpecError, match="Add --run NAME"):
        lint(options, checkpoint=redis_server.url)
