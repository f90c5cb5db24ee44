"""Flows of steps and failures by chance: the same in any order of answers, and from a stream as from a list."""

import asyncio
import random
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.engine_harness import asked
from tests.support.flow_harness import prompts

from batch_agent import BackendError, ErrorKind, Flow
from batch_agent.core.requests import Request
from batch_agent.flows.result import FlowResult, Item
from batch_agent.testing import Answer, ScriptedBackend, say

INPUTS = [{"it": number, "kind": "abc"[number % 3]} for number in range(25)]


def number_of(text: str) -> int:
    """As a hash, but the same in every process."""
    return zlib.crc32(text.encode())


def by_chance(seed: int) -> ScriptedBackend:
    """What it answers depends on the task alone; when, on the seed."""
    chance = random.Random(seed)

    async def answer(request: Request) -> Answer:
        await asyncio.sleep(chance.random() * 10)
        number = number_of(asked(request))
        if number % 11 == 0 and asked(request).startswith("Map"):
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        if number % 13 == 0 and len(asked(request)) > 1000:
            return BackendError(ErrorKind.CONTEXT_OVERFLOW, "too long")
        return say(f"{number} " + "x" * (number % 300))

    return ScriptedBackend(answer, inflight=chance.choice([1, 4, 32]), context_tokens=1500)


def keep(item: Item) -> bool:
    if number_of(repr(sorted(item))) % 17 == 0:
        raise RuntimeError("no filter today")
    return number_of(str(sorted(item.items()))) % 5 > 0


def into(item: Item) -> Any:
    count = number_of(str(sorted(item.items()))) % 6
    return None if count == 5 else range(count)


def by(item: Item) -> Any:
    return number_of(str(item.position)) % 3


def random_flow(seed: int, inputs: Any, backend: ScriptedBackend) -> Flow:
    chance = random.Random(seed)
    flow, last = Flow(inputs, backend=backend), "it"
    for step in range(chance.randint(2, 6)):
        policy: Any = chance.choice(["keep", "keep", "skip"])
        match chance.choice(["map", "map", "filter", "expand", "reduce", "reduce_by"]):
            case "map":
                flow, last = flow.map(f"s{step}", f"Map {step} {{{last}}}", on_failure=policy), f"s{step}"
            case "filter":
                flow = flow.filter(keep)
            case "expand":
                flow, last = flow.expand(f"s{step}", into), f"s{step}"
            case "reduce":
                flow, last = flow.reduce(f"s{step}", f"Reduce {step} {{n}}", on_failure=policy), f"s{step}"
            case _:
                reduced = flow.reduce(f"s{step}", f"Reduce {step} {{group}}", group_by=by, on_failure=policy)
                flow, last = reduced, f"s{step}"
    return flow.reduce("last", "Reduce {n}")


def told(outcome: FlowResult) -> Any:
    counts = {name: (len(report.results), report.failed, report.skipped) for name, report in outcome.stages.items()}
    return [(item.position, dict(item), item.error, item.stage) for item in outcome.items], counts


@pytest.mark.parametrize("seed", range(15))
async def test_the_order_of_answers_does_not_change_the_results_of_a_flow(seed: int) -> None:
    async def stream() -> AsyncIterator[Any]:
        for value in INPUTS:
            await asyncio.sleep(0.1)
            yield value

    seen = []
    for order, inputs in ((1, INPUTS), (2, INPUTS), (3, stream())):
        backend = by_chance(1000 * seed + order)
        outcome = await random_flow(seed, inputs, backend).run()
        seen.append((sorted(prompts(backend)), told(outcome)))
    assert seen[0] == seen[1]
    assert seen[0] == seen[2]
