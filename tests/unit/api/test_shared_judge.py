"""Judges of a run on a server: their verdicts are kept there, too."""

import uuid
from typing import Any

import orjson
import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BackendError, BatchAgent, ErrorKind, Results, RunStopped, judge
from batch_agent.cluster.redis.redis_coordinator import runs_known
from batch_agent.cluster.redis.run_copy import stages_of
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say

__all__ = ["redis_server"]

INPUTS = [{"n": number} for number in range(6)]


class Server:
    """Answers, and judges as often as it is allowed to."""

    def __init__(self, verdicts: float) -> None:
        self.verdicts = verdicts
        self.backend = ScriptedBackend(self._answer, model="m")
        self.judged = 0

    def _answer(self, request: Request) -> Answer:
        if not str(getattr(request.messages[0], "text", "")).startswith("Grade"):
            return say("even")
        if self.judged >= self.verdicts:
            raise BackendError(ErrorKind.AUTH, "the key was revoked", status=401)
        self.judged += 1
        return say(orjson.dumps({"reason": "so", "meets_rubric": True}).decode())


async def run(server: Server, store: str, name: str, rubric: str = "It is {right}.") -> Results[Any]:
    results: Results[Any] = await BatchAgent.run(
        task="Is {n} even?",
        inputs=INPUTS,
        backend=server.backend,
        score=judge(rubric, name="is it right?"),
        store=store,
        run_id=name,
        max_inflight=1,
        progress=False,
    )
    return results


async def test_a_judge_that_was_interrupted_goes_on_where_it_was(redis_server: RedisServer) -> None:
    name = f"run-{uuid.uuid4().hex[:8]}"
    with pytest.raises(RunStopped, match="a judge failed"):
        await run(Server(2), redis_server.url, name)
    second = Server(100)
    results = await run(second, redis_server.url, name)
    assert second.judged == 4
    assert [result.scores for result in results] == [{"is it right?": 1.0}] * 6
    third = Server(0)
    assert (await run(third, redis_server.url, name)).metrics["is it right?"].mean == 1.0


async def test_another_rubric_is_judged_anew(redis_server: RedisServer) -> None:
    name = f"run-{uuid.uuid4().hex[:8]}"
    await run(Server(100), redis_server.url, name)
    other = Server(100)
    await run(other, redis_server.url, name, "It is {short}.")
    assert other.judged == 6


async def test_the_run_of_a_judge_is_no_stage_of_a_flow(redis_server: RedisServer) -> None:
    name = f"run-{uuid.uuid4().hex[:8]}"
    await run(Server(100), redis_server.url, name)
    assert f"{name}.judge.is_20it_20right_3F" in await runs_known(redis_server.url)
    assert await stages_of(redis_server.url, name) == []
