"""The shared prefix goes ahead of the first agents where the server's cache can be read only after an answer."""

from typing import Any

import pytest
from tests.support.engine_harness import now, run

from batch_agent import BackendError, ErrorKind
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say

LONG = "Be brief. " * 500


def backend(*, managed_cache: bool = True) -> ScriptedBackend:
    return ScriptedBackend(lambda request: say("fine"), seconds=1.0, managed_cache=managed_cache)


async def test_one_request_warms_the_prefix_before_all_others_are_sent_together() -> None:
    served = backend()
    await run(served, ["a", "b", "c"], system_prompt=LONG)
    warming, *agents = served.requests
    assert warming.sampling.max_tokens == 1
    assert warming.agent == ""
    assert warming.prompt is agents[0].prompt
    assert len(agents) == 3
    assert served.most_in_flight == 3
    assert now() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "inputs", "managed"),
    [
        ({"system_prompt": "Be brief."}, ["a", "b"], True),
        ({"system_prompt": LONG}, ["a"], True),
        ({"system_prompt": LONG}, ["a", "b"], False),
        ({"system_prompt": LONG, "warm_prefix": False}, ["a", "b"], True),
    ],
)
async def test_the_prefix_is_not_warmed_where_it_does_not_pay(options: Any, inputs: list[str], managed: bool) -> None:
    served = backend(managed_cache=managed)
    await run(served, inputs, **options)
    assert len(served.requests) == len(inputs)


async def test_warm_prefix_true_forces_the_warmup() -> None:
    served = backend(managed_cache=False)
    await run(served, ["a"], warm_prefix=True)
    assert len(served.requests) == 2


async def test_a_failed_prefix_warmup_stops_no_agent(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Request) -> Answer:
        return say("fine") if request.agent else BackendError(ErrorKind.BAD_REQUEST, "max_tokens is too small")

    results = await run(ScriptedBackend(answer), ["a", "b"], warm_prefix=True)
    assert all(result.ok for result in results)
    assert "shared prefix failed: max_tokens is too small" in capsys.readouterr().err
