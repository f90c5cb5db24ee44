"""Everything goes wrong at once, in every order: each input still has one result, and nothing is left behind."""

import asyncio
import logging
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import asked, run, stream

from batch_agent import BackendError, ErrorKind, Tool
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, call, run_virtual, say

AGENTS = 15


class Chaos:
    """What each request and each tool call does, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.backend = ScriptedBackend(self._answer, inflight=self._random.randint(1, 5))

    def options(self) -> dict[str, Any]:
        @Tool.define
        async def work() -> str:
            return str(await self._happen())

        return {
            "tools": [work],
            "timeout_per_turn": 5.0,
            "timeout_per_tool": 4.0,
            "timeout_per_agent": self._random.choice([9.0, 40.0]),
            "max_dispatched": self._random.choice([2, 100]),
            "max_turns": 4,
            "max_retries": 1,
        }

    async def _answer(self, request: Request) -> Answer:
        await self._happen()
        return call("work") if self._random.random() < 0.5 else say(asked(request))

    async def _happen(self) -> float:
        """Takes some time, fails, hangs or breaks."""
        seconds = self._random.choice([0.0, 0.0, 0.5, 1.0])
        await asyncio.sleep(seconds)
        match self._random.randrange(14):
            case 0:
                raise BackendError(ErrorKind.SERVER, "down")
            case 1:
                raise BackendError(ErrorKind.RATE_LIMITED, "busy", retry_after=self._random.choice([None, 0.0, 2.0]))
            case 2:
                raise ZeroDivisionError
            case 3:
                raise asyncio.CancelledError
            case 4:
                await asyncio.Event().wait()
        return seconds


inputs = [str(number) for number in range(AGENTS)]
often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@often
@given(st.integers(0, 2**32))
def test_every_input_has_one_result_whatever_happens(seed: int) -> None:
    async def main() -> None:
        chaos = Chaos(seed)
        results = await run(chaos.backend, inputs, **chaos.options())
        assert [result.index for result in results] == list(range(AGENTS))
        for result in results:
            assert result.text == result.input if result.ok else result.error is not None
        assert chaos.backend.in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    logging.disable()
    try:
        run_virtual(main())
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.slow
@often
@given(st.integers(0, 2**32), st.floats(0, 20))
def test_a_run_can_be_cancelled_at_any_moment(seed: int, moment: float) -> None:
    async def main() -> None:
        chaos = Chaos(seed)
        seen: set[int] = set()
        results = stream(chaos.backend, inputs, **chaos.options())
        try:
            async with asyncio.timeout(moment), results:
                async for result in results:
                    assert result.index not in seen
                    seen.add(result.index)
        except TimeoutError:
            pass
        else:
            assert seen == set(range(AGENTS))
        assert chaos.backend.in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    logging.disable()
    try:
        run_virtual(main())
    finally:
        logging.disable(logging.NOTSET)
