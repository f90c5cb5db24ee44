"""Models of `fallback=` that their servers do not have."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_agent import Backend, BatchAgent, ErrorKind, Results, RunStopped, SpecError
from batch_agent.core.requests import Request
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, say

DOWN = "http://127.0.0.1:1/v1"


async def run(first: Any, fallback: Any, **options: Any) -> Results:
    inputs = [{"n": number} for number in range(4)]
    results: Results = await BatchAgent.run(
        task="Do {n}", inputs=inputs, backend=first, fallback=[fallback], progress=False, **options
    )
    return results


def good(_: Request) -> Answer:
    return say("an answer")


class Lost:
    """Answers of a backend that is lost after two of them."""

    def __init__(self) -> None:
        self.answered = 0

    def __call__(self, request: Request) -> Answer:
        if self.answered == 2:
            raise RunStopped(ErrorKind.UNAVAILABLE, "no request was answered for 5 s")
        self.answered += 1
        return good(request)


@pytest.fixture
def served() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, model="large"), Script(tool_turns=0)) as server:
        yield server


@pytest.mark.parametrize("entry", ["lagre={url}", Backend("{url}", model="lagre")])
async def test_a_fallback_whose_server_does_not_have_the_model_is_found_before_anything_is_sent(
    served: SimServer, entry: Any
) -> None:
    small = ScriptedBackend(good, model="small")
    url = served.url
    given = entry.format(url=url) if isinstance(entry, str) else replace(entry, url=url)
    with pytest.raises(SpecError, match=r"^fallback 1 \(lagre\): model='lagre' is not served .* Did you mean 'large'"):
        await run(small, given)
    assert not small.requests


async def test_a_fallback_that_cannot_be_asked_may_be_there_when_it_is_needed() -> None:
    results = await run(ScriptedBackend(good, model="small"), f"large={DOWN}")
    assert all(result.ok for result in results)


async def test_a_run_whose_answers_are_complete_asks_no_fallback(served: SimServer, tmp_path: Path) -> None:
    small = ScriptedBackend(good, model="small")
    await run(small, served.url, checkpoint_dir=tmp_path)
    results = await run(small, f"lagre={served.url}", checkpoint_dir=tmp_path)
    assert all(result.ok for result in results)


async def test_a_last_fallback_that_cannot_be_used_stops_the_run_with_what_was_answered() -> None:
    with pytest.raises(RunStopped, match=r"^fallback 1 \(.*\): ") as stopped:
        await run(ScriptedBackend(Lost(), model="small"), DOWN, max_inflight=1)
    assert [result.index for result in stopped.value.results] == [0, 1]
    assert stopped.value.kind is ErrorKind.UNAVAILABLE


async def test_a_model_that_is_gone_when_it_is_needed_stops_the_run_with_what_was_answered(served: SimServer) -> None:
    lost = Lost()

    def answer(request: Request) -> Answer:
        if lost.answered == 1:
            served.stop()
            served.config = replace(served.config, model="huge")
            served.start()
        return lost(request)

    with pytest.raises(RunStopped, match=r"^fallback 1 \(large\): model='large' is not served") as stopped:
        await run(ScriptedBackend(answer, model="small"), f"large={served.url}", max_inflight=1)
    assert [result.index for result in stopped.value.results] == [0, 1]
