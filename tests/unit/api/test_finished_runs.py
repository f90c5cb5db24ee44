"""Runs whose results are all in their checkpoint need no server, whatever options they have. The first has a real
(simulated) one, which is gone when the run is given again."""

import sys
from pathlib import Path
from typing import Any

import pytest

from batch_agent import MCP, BackendError, BatchAgent, ProcessRuntime
from batch_agent.sim import Script, SimConfig, SimServer

NOBODY = "http://127.0.0.1:1"
LONG = "word " * 5000
REFUSED = '[[sim: {"fault": "400"}]]'
BROKEN = '[[sim: {"fault": "500"}]]'
MCP_SERVER = """
import pathlib
from mcp.server import MCPServer

pathlib.Path("started").open("a").write("x")
server = MCPServer("words")

@server.tool()
def look(word: str) -> str:
    "Looks."
    return word

server.run()
"""


async def twice(folder: Path, inputs: Any = ("a", "b"), again: Any = None, **options: Any) -> None:
    """The same run, with its server and without."""
    options |= {"task": "Say {it}", "checkpoint_dir": folder}
    config = SimConfig(step_base_ms=1, max_model_len=2048)
    with SimServer(config, Script(answer_tokens=8)) as sim:
        first = await BatchAgent.run(inputs=list(inputs), backend=sim.url, **options)
    second = await BatchAgent.run(inputs=list(inputs), backend=NOBODY, **(options | (again or {})))
    assert [(each.key, each.output, each.error) for each in second] == [
        (each.key, each.output, each.error) for each in first
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"max_usd": 1.0, "prices": {"sim": (1, 1, 1)}},
        {"max_total_tokens": 100_000, "again": {"max_total_tokens": 1}},
        {"deadline": 60.0},
        {"retry_failed": False},
        {"max_inflight": 1, "again": {"max_inflight": 7}},
        {"inputs": ["a", LONG]},
        {"inputs": [LONG, "a", LONG[5:]]},
        {"inputs": ["a", LONG], "oversized": "chunk"},
    ],
    ids=["usd", "used up", "deadline", "retry", "inflight", "too long", "all too long", "in parts"],
)
async def test_a_finished_run_needs_no_server(tmp_path: Path, options: dict[str, Any]) -> None:
    await twice(tmp_path, **options)


async def test_the_results_file_of_a_finished_run_is_written_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await twice(tmp_path / "checkpoint", out=out, again={"out": tmp_path / "again.jsonl"})
    assert (tmp_path / "again.jsonl").read_text().count("\n") == out.read_text().count("\n") == 2


@pytest.mark.slow
async def test_a_finished_run_starts_no_mcp_server(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(MCP_SERVER)
    await twice(tmp_path / "checkpoint", tools=[MCP([sys.executable, "server.py"], cwd=tmp_path)])
    assert (tmp_path / "started").read_text() == "x"


@pytest.mark.parametrize("more", [{"inputs": ["a", "b", "c"]}, {"inputs": ["a", LONG, "c"]}])
async def test_an_unfinished_run_needs_its_server(tmp_path: Path, more: dict[str, Any]) -> None:
    await twice(tmp_path, ["a", LONG])
    with pytest.raises(BackendError):
        await BatchAgent.run(task="Say {it}", backend=NOBODY, checkpoint_dir=tmp_path, **more)


@pytest.mark.parametrize(("failing", "retry_failed"), [(REFUSED, True), (BROKEN, True), (BROKEN, False)])
async def test_an_agent_with_a_server_error_is_not_finished(tmp_path: Path, failing: str, retry_failed: bool) -> None:
    with pytest.raises(BackendError):
        await twice(tmp_path, ["a", failing], retry_failed=retry_failed, max_retries=0)


async def test_a_rejected_request_is_not_sent_again_without_retry_failed(tmp_path: Path) -> None:
    await twice(tmp_path, ["a", REFUSED], retry_failed=False)


@pytest.mark.slow
async def test_a_finished_run_starts_no_coding_program(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'a').write('x'); open('new.txt', 'w').write('n'); print('done')"
    await twice(
        tmp_path / "checkpoint", runtime=ProcessRuntime([sys.executable, "-c", code], workdir=tmp_path / "project")
    )
    assert ran.read_text() == "xx"  # once for each agent
