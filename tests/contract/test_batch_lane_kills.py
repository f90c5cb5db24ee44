"""kill -9 of a run in the batch lane at every step, over real HTTP: each request is submitted once."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import batch_lane_process
from tests.support.batch_lane_process import AGENTS
from tests.support.killing_proxy import KillingProxy, KillPoint, Phase, killing_proxy

from batch_agent.sim import BatchConfig, Script, SimConfig, SimServer

TURNS = 3
_TIMEOUT = 60
_PHASES: tuple[Phase, ...] = ("before", "between", "after")
_POINTS = [KillPoint(exchange, phase) for exchange in range(7) for phase in _PHASES] + [
    KillPoint(exchange, "after", delay) for exchange in (2, 3, 4, 5) for delay in (0.01, 0.05)
]
"""With both services, 58 points. An uninterrupted run has three waves of four exchanges and more."""
_SHORT = [KillPoint(0, "between"), KillPoint(1, "before"), KillPoint(1, "between"), KillPoint(3, "after", 0.01)]


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    config = SimConfig(zero_latency=True, batches=BatchConfig(seconds=0.1))
    with SimServer(config, Script(tool_turns=TURNS - 1, answer_tokens=12)) as server:
        yield server


async def run(proxy: KillingProxy, scheme: str, folder: Path) -> list[str] | None:
    """The answers; None if the process was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        batch_lane_process.__file__,
        address(proxy.url, scheme),
        str(folder),
        "batch",
        stdout=asyncio.subprocess.PIPE,
    )

    def kill() -> None:
        with suppress(ProcessLookupError):
            process.kill()

    proxy.kill = kill
    try:
        async with asyncio.timeout(_TIMEOUT):
            out, _ = await process.communicate()
    finally:
        kill()
    return json.loads(out) if process.returncode == 0 else None


@pytest.fixture(scope="module")
def expected(sim: SimServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The answers of runs in the standard lane, by service."""
    answers: dict[str, list[str]] = {}
    for scheme in ("openai", "anthropic"):
        arguments = [address(sim.url, scheme), str(tmp_path_factory.mktemp("live")), "standard"]
        command = [sys.executable, batch_lane_process.__file__, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_TIMEOUT, check=True)
        answers[scheme] = json.loads(done.stdout)
    return answers


def address(url: str, scheme: str) -> str:
    return (url.replace("http", "anthropic", 1) if scheme == "anthropic" else url) + "/v1"


async def check(sim: SimServer, scheme: str, point: KillPoint, folder: Path, expected: dict[str, list[str]]) -> None:
    async with killing_proxy(sim.url) as proxy:
        before = sim.billed("batch")["requests"]
        proxy.point = point
        await run(proxy, scheme, folder)
        proxy.point = None
        results = await run(proxy, scheme, folder)
        assert results == expected[scheme]
        assert proxy.has_killed, proxy.exchanges
        assert sim.billed("batch")["requests"] - before == AGENTS * TURNS


def name(point: KillPoint) -> str:
    return f"{point.exchange}-{point.phase}-{point.delay:g}"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["openai", "anthropic"])
@pytest.mark.parametrize("point", _SHORT, ids=name)
async def test_a_killed_run_submits_each_request_once(
    sim: SimServer, scheme: str, point: KillPoint, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    await check(sim, scheme, point, tmp_path, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["openai", "anthropic"])
@pytest.mark.parametrize("point", _POINTS, ids=name)
async def test_a_run_that_is_killed_at_any_point_submits_each_request_once(
    sim: SimServer, scheme: str, point: KillPoint, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    await check(sim, scheme, point, tmp_path, expected)
