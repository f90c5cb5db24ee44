"""Budgets under every fault at once: what a server bills, by its own books, is never more than the run may spend."""

import random
from typing import Any

import pytest
from tests.support.engine_harness import run, waiting_tool
from tests.support.faulty_backend import FaultyServer

INPUTS = [f"{n:040}" for n in range(300)]


def options(dice: random.Random) -> dict[str, Any]:
    return {
        "max_inflight": 200,
        "max_tokens": dice.choice((20, 50, 200)),
        "max_retries": dice.choice((0, 3)),
        "timeout_per_turn": 12.0,
        "timeout_per_agent": dice.choice((None, 30.0)),
        "tools": [waiting_tool(1.0)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
async def test_no_mix_of_faults_makes_a_run_exceed_its_budget(seed: int) -> None:
    dice, server = random.Random(seed), FaultyServer(seed)
    limit = dice.choice((3_000, 20_000, 60_000))
    results = await run(server, INPUTS, max_total_tokens=limit, **options(dice))  # type: ignore[arg-type]
    assert len(results) == len(INPUTS)
    assert 0 < server.billed <= limit
