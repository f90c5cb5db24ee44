"""Which limits a run gets, from what was asked for and what its backend is."""

import asyncio
from typing import Any

import pytest

from batch_agent.core.agent_config import AgentConfig, Job
from batch_agent.core.messages import Prompt
from batch_agent.core.requests import Sampling
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.admission_setup import build_admission, measure_chars_per_token
from batch_agent.engine.residency import Residency
from batch_agent.plan.compile import prefix_chars
from batch_agent.plan.layout import CHARS_PER_TOKEN
from batch_agent.schedule.slot_queue import Priority
from batch_agent.testing import ScriptedBackend, say

RULES = AgentConfig(Prompt("Be brief. " * 40), "m", Sampling(), "native", None, None, None, max_turns=4, max_retries=0)


def backend(**traits: Any) -> ScriptedBackend:
    return ScriptedBackend(lambda request: say("done"), **traits)


async def gate(server: ScriptedBackend, rules: AgentConfig = RULES, **options: Any) -> AdmissionController:
    spec = BatchSpec.of(**{"task": "{it}", "inputs": ["a"], "tools": [len], **options})
    scale = await measure_chars_per_token(server, f"{rules.prompt.system}\na text of some words")
    has_later_turns = bool(spec.tools) and rules.max_turns > 1
    shared = prefix_chars(rules.prompt)
    return build_admission(spec, server, shared, scale or CHARS_PER_TOKEN, None, has_later_turns=has_later_turns)


class Counting(ScriptedBackend):
    asked = ""

    async def count_tokens(self, text: str) -> int | None:
        self.asked = text
        return len(text) // 2


async def test_the_inflight_limit_is_that_of_the_user_the_backend_or_a_low_start() -> None:
    assert (await gate(backend(inflight=32), max_inflight=5)).slots.limit == 5
    assert (await gate(backend(inflight=32))).slots.limit == 32
    assert (await gate(backend(inflight=32), calibrate_backend=True)).slots.limit == 8
    assert (await gate(backend(inflight=4), calibrate_backend=True)).slots.limit == 4


async def test_residency_is_counted_only_for_multi_turn_agents_on_a_managed_cache() -> None:
    assert (await gate(backend(kv_tokens=1000))).residency is not None
    assert (await gate(backend(kv_tokens=1000), tools=[])).residency is None
    assert (await gate(backend(kv_tokens=1000, managed_cache=True))).residency is None


@pytest.mark.parametrize(
    ("kept", "running", "is_bound"), [(None, 1000, True), (5000, 1000, True), (1000, 1000, False), (None, None, False)]
)
async def test_with_a_slower_cache_tier_requests_in_flight_must_fit_the_fast_tier(
    kept: int | None, running: int | None, is_bound: bool
) -> None:
    opened = await gate(backend(kv_tokens=kept, kv_running_tokens=running, inflight=100))
    (await opened.admit(Job(0, "an agent", None, "x" * 1600), ())).release()
    held = [opened.slots.acquire(Priority(is_fresh=True)) for _ in range(10)]
    granted = [asyncio.ensure_future(each) for each in held]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(each.done() for each in granted) == (2 if is_bound else 10)
    for each in granted:
        each.cancel()


async def test_the_server_counts_the_tokens_of_the_first_tasks() -> None:
    server = Counting(lambda request: say("done"), kv_tokens=1000)
    opened = await gate(server)
    assert "a text of some words" in server.asked
    assert isinstance(opened.residency, Residency)
    assert opened.residency.ledger.shared_tokens == pytest.approx(len(RULES.prompt.system) / 2, rel=0.01)


async def test_without_a_token_count_four_characters_are_a_token() -> None:
    opened = await gate(backend(kv_tokens=1000))
    assert isinstance(opened.residency, Residency)
    assert opened.residency.ledger.shared_tokens == len(RULES.prompt.system) / 4


@pytest.mark.parametrize(
    ("traits", "options", "is_on"),
    [
        ({"kv_tokens": 1000}, {"kvflow": True}, True),
        ({"kv_tokens": 1000}, {}, False),
        ({}, {"kvflow": True}, False),
        ({"kv_tokens": 1000, "has_agent_sessions": True}, {"kvflow": True}, False),
        ({"kv_tokens": 1000}, {"kvflow": True, "max_total_tokens": 10_000}, False),
        ({"kv_tokens": 1000}, {"kvflow": True, "max_usd": 1.0}, False),
        ({"kv_tokens": 1000}, {"kvflow": True, "deadline": 60.0}, True),
    ],
)
async def test_contexts_are_kept_warm_only_where_that_can_help(
    traits: dict[str, Any], options: dict[str, Any], is_on: bool
) -> None:
    assert ((await gate(backend(**traits), **options)).report().keep_warm is not None) == is_on
