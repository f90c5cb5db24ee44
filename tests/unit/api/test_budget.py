"""Budgets against a server that keeps books of its own: no fault of it makes a run spend more than it may."""

import asyncio
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.billing_server import BillingServer, Fault, always, often
from tests.support.faulty_backend import FaultyServer
from tests.support.forked_programs import Programs
from tests.support.sim_hosts import CHAT, QUICK, Host, up

from batch_agent import BatchAgent, ErrorKind, SpecError, Tool
from batch_agent.core.events import BudgetReported, Event
from batch_agent.observe.run_stats import RunStats
from batch_agent.sim import Script

INPUTS = [f"{n:040}" for n in range(600)]
FAST: dict[str, Any] = {"max_inflight": 200, "max_tokens": 50, "backoff": 0.001, "backoff_max": 0.002}


class SpentLog:
    def __init__(self) -> None:
        self.spent = BudgetReported(0, 0.0)

    def emit(self, event: Event) -> None:
        if isinstance(event, BudgetReported):
            self.spent = event


async def run(server: BillingServer, inputs: Any = INPUTS, **options: Any) -> Any:
    return await BatchAgent.run(task="{it}", inputs=inputs, backend=server.url, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        always("ok"),
        often(0.5, "abort"),
        often(0.5, "broken"),
        often(0.3, "drop"),
        often(0.5, "error"),
        always("no completion"),
        always("negative"),
        always("none"),
        always("zero"),
        always("floats"),
        always("cached"),
        often(0.9, "drop"),
    ],
    ids=lambda fault: None,
)
async def test_a_budget_of_tokens_is_not_exceeded(fault: Fault) -> None:
    log = SpentLog()
    with BillingServer(fault) as server:
        results = await run(server, max_total_tokens=20_000, events=log, **FAST)
    assert len(results) == len(INPUTS)
    assert 0 < server.billed <= log.spent.tokens <= 20_000
    assert any(result.error and result.error.kind is ErrorKind.BUDGET for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [always("ok"), often(0.5, "abort"), often(0.3, "drop"), always("none")])
async def test_a_budget_is_not_exceeded_by_answers_that_take_all_of_a_derived_limit(fault: Fault) -> None:
    options = {name: value for name, value in FAST.items() if name != "max_tokens"}
    with BillingServer(fault) as server:
        results = await run(server, max_total_tokens=100_000, **options)
    assert len(results) == len(INPUTS)
    assert 20_000 < server.billed <= 100_000


async def test_all_agents_of_a_server_with_a_large_window_are_answered_with_a_small_budget() -> None:
    config = replace(QUICK, max_model_len=400_000)
    async with up(Host(config)) as [host]:
        results = await BatchAgent.run(
            task="{it}", inputs=INPUTS[:100], backend=host.url, max_usd=0.5, prices={"sim": (3.0, 0.3, 15.0)}
        )
        limits = [body["max_tokens"] for path, body in host.posts if path == CHAT]
    assert all(result.ok for result in results)
    assert len(limits) == 100
    assert max(limits) == 1_024
    assert min(limits) < 1_024, "learned from the answers"


async def test_answers_that_a_derived_limit_cuts_are_whole_in_the_end() -> None:
    async with up(Host(QUICK, Script(answer_tokens=3_000))) as [host]:
        results = await BatchAgent.run(
            task="{it}", inputs=INPUTS[:40], backend=host.url, max_usd=4.0, prices={"sim": (3.0, 0.3, 15.0)}
        )
        sent = [body["max_tokens"] for path, body in host.posts if path == CHAT]
    assert [(result.finish, result.usage.output) for result in results] == [("stop", 3_000)] * 40
    assert min(sent) < 3_000 <= max(sent)


async def test_prompts_that_fill_most_of_a_small_window_are_answered() -> None:
    """The engine rejects a request whose prompt and max_tokens together exceed its window."""
    config, inputs = replace(QUICK, max_model_len=2_048), [f"{n:03}" + "x" * 300 * n for n in range(24)]
    async with up(Host(config)) as [host]:
        results = await BatchAgent.run(
            task="{it}", inputs=inputs, backend=host.url, max_usd=5.0, prices={"sim": (3.0, 0.3, 15.0)}
        )
    assert all(result.ok for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [always("ok"), often(0.5, "broken"), always("cached"), always("negative")])
async def test_a_budget_of_dollars_is_not_exceeded(fault: Fault) -> None:
    with BillingServer(fault) as server:
        await run(server, max_usd=0.02, prices={"m": (1.0, 0.1, 4.0)}, **FAST)
        assert 0 < (server.input + 4 * server.output) / 1e6 <= 0.02


@pytest.mark.parametrize("options", [{}, {"context_tokens": 100_000}])
async def test_long_prompts_without_a_known_window_stay_within_the_budget(options: dict[str, Any]) -> None:
    inputs = ["x" * 50_000 + str(n) for n in range(20)]
    with BillingServer(chars_per_token=1.0) as server:
        results = await run(server, inputs, max_total_tokens=150_000, max_inflight=20, max_tokens=50, **options)
        assert 100_000 <= server.billed <= 150_000
    assert sum(result.ok for result in results) == 2


async def test_long_prompts_stay_within_a_dollar_budget() -> None:
    inputs = ["x" * 50_000 + str(n) for n in range(20)]
    with BillingServer(chars_per_token=1.0) as server:
        options: dict[str, Any] = {"max_inflight": 20, "max_tokens": 50, "prices": {"m": (10.0, 10.0, 10.0)}}
        await run(server, inputs, max_usd=1.0, **options)
        assert 0.5 <= server.billed / 1e5 <= 1.0


async def test_context_tokens_bounds_the_reserved_answers() -> None:
    with BillingServer() as server:
        results = await run(server, INPUTS[:4], max_total_tokens=5_000, context_tokens=4_000)
        assert all(result.ok for result in results)


async def test_several_answers_to_one_request_are_refused_before_anything_is_paid_for() -> None:
    options: dict[str, Any] = {"max_total_tokens": 900, "max_tokens": 200}
    with BillingServer() as server:
        with pytest.raises(SpecError, match=r"^extra must not hold n=4: an agent has one answer"):
            await run(server, INPUTS[:1], **options, extra={"n": 4})
        assert server.requests == 0
        [result] = await run(server, INPUTS[:1], **options, extra={"n": 1})
        assert result.ok
        assert server.requests == 1


async def test_a_prompt_whose_connection_is_always_dropped_is_sent_once_per_attempt() -> None:
    with BillingServer(always("drop")) as server:
        await run(server, INPUTS[:1], max_retries=3, backoff=0.001, max_tokens=50)
        assert server.requests == 4


async def test_a_resend_beyond_the_budget_is_not_made() -> None:
    with BillingServer(often(0.5, "drop")) as server:
        await run(server, INPUTS[:40], max_total_tokens=1_500, max_inflight=4, max_tokens=50, backoff=0.001)
        assert server.billed <= 1_500


async def test_the_tool_trial_request_is_counted_in_the_budget() -> None:
    @Tool.define
    async def look(key: str) -> str:
        return key

    log = SpentLog()
    with BillingServer() as server:
        [result] = await run(server, INPUTS[:1], tools=[look], max_total_tokens=20_000, max_tokens=50, events=log)
        assert result.ok
        assert server.requests == 2
        assert result.usage.input + result.usage.output < server.billed <= log.spent.tokens


async def test_the_tool_trial_request_is_in_the_usage_of_the_run() -> None:
    @Tool.define
    async def look(key: str) -> str:
        return key

    stats = RunStats()
    with BillingServer() as server:
        await run(server, INPUTS[:5], tools=[look], max_tokens=50, events=stats)
        assert server.requests == 6
        assert stats.usage.input + stats.usage.output == server.billed


@pytest.mark.slow
async def test_repeated_tool_trials_do_not_exceed_the_budget(tmp_path: Path) -> None:
    @Tool.define
    async def look(key: str) -> str:
        return key

    with BillingServer() as server:
        options: dict[str, Any] = {"max_total_tokens": 1_200, "max_tokens": 50, "checkpoint_dir": tmp_path}
        for _ in range(12):
            results = await run(server, INPUTS[:40], tools=[look], **options)
            assert [result.ok for result in results][:2] == [True, True]
        assert server.billed <= 1_200
    assert {result.error.kind for result in results if result.error} == {ErrorKind.BUDGET}


@pytest.mark.slow
async def test_tokens_spent_without_an_answer_count_in_the_next_run(tmp_path: Path) -> None:
    with BillingServer(often(0.5, "broken")) as server:
        for _ in range(4):
            await run(server, max_total_tokens=8_000, checkpoint_dir=tmp_path, **FAST)
        assert 1_000 < server.billed <= 8_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_and_resumed_runs_together_stay_within_the_budget(seed: int, tmp_path: Path) -> None:
    server, limit = FaultyServer(seed, second=0.001), 40_000
    options: dict[str, Any] = {"max_inflight": 200, "max_tokens": 50, "timeout_per_turn": 0.2, "backoff": 0.001}
    for part in range(1, 5):
        going = BatchAgent.run(
            task="{it}", inputs=INPUTS, backend=server, max_total_tokens=limit, checkpoint_dir=tmp_path, **options
        )
        running = asyncio.ensure_future(going)
        while not running.done() and server.billed < part * limit / 8:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])
    assert limit / 10 < server.billed <= limit


RUN = """
import asyncio, sys
from batch_agent import BatchAgent

BatchAgent.run_sync(
    task="{it}", inputs=[f"{n:040}" for n in range(int(sys.argv[5]))], backend=sys.argv[2], checkpoint_dir=sys.argv[1],
    max_total_tokens=int(sys.argv[3]), max_tokens=int(sys.argv[4]) or None, max_inflight=16,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "max_tokens", "agents"), [(40_000, 50, 3_000), (400_000, 0, 300)], ids=["max_tokens", "derived limit"]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_repeatedly_stays_within_its_budget(
    programs: Programs, tmp_path: Path, number: signal.Signals, limit: int, max_tokens: int, agents: int
) -> None:
    """The server finishes what it began."""
    with BillingServer(seconds=0.02) as server:
        for _ in range(14):
            before = server.requests
            program = programs.start(RUN, str(tmp_path / "run"), server.url, *map(str, (limit, max_tokens, agents)))
            ended = threading.Thread(target=program.wait)
            ended.start()
            while ended.is_alive() and server.requests < before + 40:
                time.sleep(0.002)
            if ended.is_alive():
                program.send_signal(number)
            ended.join()
        assert limit / 8 < server.billed <= limit
