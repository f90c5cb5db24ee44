"""Programs with `fallback=`: processes that ask simulated servers over HTTP, of which the first one goes down."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import AgentResult, BatchAgent, ProcessRuntime, Results, SpecError
from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

_PROGRAM = """
    import json, os, pathlib, sys, urllib.request

    assert not pathlib.Path("begun").exists(), "the copy is not a new one"
    pathlib.Path("begun").touch()
    for _ in range(2):
        body = {"model": sys.argv[1], "messages": [{"role": "user", "content": sys.argv[2]}]}
        asked = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
            {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"})
        said = json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]["content"]
    print(sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(textwrap.dedent(_PROGRAM))
    return [sys.executable, "-S", str(tmp_path / "program.py"), "{model}", "{task}"]


@pytest.fixture
def large() -> Iterator[SimServer]:
    with SimServer(SimConfig(model="large", zero_latency=True), Script(answer_tokens=4)) as started:
        yield started


async def run(program: list[str], small: SimServer, large: str, **options: Any) -> Results:
    """The first server goes down after the first answer of a program."""
    stream = BatchAgent.stream(
        task="Do {n}",
        inputs=[{"n": n} for n in range(6)],
        backend=small.url,
        fallback=[large],
        max_retries=0,
        progress=False,
        **{"runtime": ProcessRuntime(program), "max_agents": 2, **options},
    )
    results = list[AgentResult]()
    async with stream:
        async for result in stream:
            if not results:
                small.stop()
            results.append(result)
    return Results(sorted(results, key=lambda each: each.index))


@pytest.mark.slow
async def test_programs_that_a_lost_server_leaves_start_again_with_the_next_one(
    program: list[str], large: SimServer, tmp_path: Path
) -> None:
    with SimServer(SimConfig(model="small", zero_latency=True), Script(answer_tokens=4)) as small:
        results = await run(program, small, large.url, checkpoint_dir=tmp_path / "kept")
    assert [result.ok for result in results] == [True] * 6
    assert all(result.output == result.model for result in results)
    assert {"small", "large"} == {result.model for result in results}
    again = await run(program, small, "http://127.0.0.1:1/v1", checkpoint_dir=tmp_path / "kept", model="small")
    assert [result.output for result in again] == [result.output for result in results]


async def test_a_runtime_with_a_backend_of_its_own_has_the_fallback_too(program: list[str], large: SimServer) -> None:
    runtime = ProcessRuntime(program, backend="http://127.0.0.1:1/v1", model="small")
    results = await BatchAgent.run(
        task="Do {n}", inputs=[{"n": 1}], runtime=runtime, fallback=[large.url], max_retries=0, progress=False
    )
    assert [result.output for result in results] == ["large"]


@pytest.mark.slow
async def test_programs_of_a_shared_run_change_over_too(
    program: list[str], large: SimServer, redis_server: RedisServer
) -> None:
    with SimServer(SimConfig(model="small", zero_latency=True), Script(answer_tokens=4)) as small:
        results = await run(program, small, large.url, store=redis_server.url, run_id="programs")
    assert [(result.ok, result.output) for result in results] == [(True, result.model) for result in results]
    assert {"small", "large"} == {result.model for result in results}


async def test_a_runtime_without_a_gateway_is_refused() -> None:
    with pytest.raises(SpecError, match="gateway=True"):
        await BatchAgent.run(
            task="Do {n}",
            inputs=[{"n": 1}],
            runtime=ProcessRuntime(["true"], gateway=False, model="small"),
            fallback=["large"],
        )
