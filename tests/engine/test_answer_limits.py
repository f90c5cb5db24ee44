"""A budget without max_tokens: answers have a derived limit, runs take as long as without a budget, and no answer is
lost."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run, waiting_tool
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind, SpecError
from batch_agent.core.events import BudgetReported, Notice, RequestRetried
from batch_agent.core.messages import Assistant
from batch_agent.core.requests import Reply, Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, call, say

PRICES = {"scripted": (3.0, 0.3, 15.0)}
ANSWER = "fine"


class Model:
    """Writes answers of a given length, bills what it wrote, and obeys the limit. A character is a token."""

    def __init__(self, needed: Any = 20, *, accepts: float = float("inf"), tool_turns: int = 0, seed: int = 0) -> None:
        self._needed = needed if callable(needed) else lambda dice: needed
        self._accepts = accepts
        self._tool_turns = tool_turns
        self._dice = random.Random(seed)
        self._lengths: dict[str, int] = {}
        self.input = self.output = 0

    @property
    def usd(self) -> float:
        return (self.input * 3 + self.output * 15) / 1e6

    def __call__(self, request: Request) -> Answer:
        limit = request.sampling.max_tokens or 10**9
        if limit > self._accepts:
            message = f"max_tokens is too large: {limit}. This model supports at most {self._accepts} completion tokens"
            raise BackendError(ErrorKind.BAD_REQUEST, message, status=400)
        turn = sum(isinstance(message, Assistant) for message in request.messages)
        length = self._lengths.setdefault(f"{request.agent} {turn}", self._needed(self._dice))
        usage = Usage(len(asked(request)), 0, min(length, limit))
        self.input, self.output = self.input + usage.input, self.output + usage.output
        if length > limit:
            return Reply("unfinis", "length", usage)
        if turn < self._tool_turns:
            wanted = call("wait")
            return Reply(wanted.text, wanted.finish, usage, wanted.calls)
        return say(ANSWER, usage)


def inputs(count: int) -> list[str]:
    return [f"{n:040}" for n in range(count)]


SHAPES: dict[str, dict[str, Any]] = {
    "200 tiny agents": {"agents": 200, "max_usd": 1.0},
    "window of 400k": {"agents": 100, "max_usd": 0.5, "window": 400_000, "inflight": 32},
    "tools": {"agents": 100, "max_usd": 0.5, "tool_turns": 3, "inflight": 32},
    "long answers": {"agents": 60, "max_usd": 10.0, "needed": lambda dice: dice.randint(200, 3000), "inflight": 32},
    "tokens": {"agents": 200, "max_total_tokens": 60_000},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_run_with_a_budget_takes_as_long_as_one_without(shape: str) -> None:
    given = dict(SHAPES[shape])
    agents, needed, tool_turns = given.pop("agents"), given.pop("needed", 20), given.pop("tool_turns", 0)
    options: dict[str, Any] = {"max_inflight": given.pop("inflight", 64), "tools": [waiting_tool(0.5)]}
    traits = {"context_tokens": given.pop("window", None)}
    took: list[float] = []
    for budget in ({}, given):
        model, began = Model(needed, tool_turns=tool_turns), now()
        backend = ScriptedBackend(model, seconds=1.0, **traits)
        results = await run(backend, inputs(agents), prices=PRICES, **options, **budget)
        took.append(now() - began)
        assert [result.output for result in results] == [ANSWER] * agents
        assert model.usd <= given.get("max_usd", float("inf"))
    assert took[1] <= took[0] * 1.1


async def test_an_answer_that_is_cut_by_the_derived_limit_is_requested_again_with_more() -> None:
    log, model = EventList(), Model(5_000)
    backend = ScriptedBackend(model, seconds=1.0)
    results = await run(backend, inputs(20), prices=PRICES, max_usd=5.0, max_inflight=20, events=log)
    limits = {request.sampling.max_tokens for request in backend.requests}
    retried = [event for event in log.events if isinstance(event, RequestRetried)]
    [spent] = [event for event in log.events if isinstance(event, BudgetReported)]
    assert [result.output for result in results] == [ANSWER] * 20
    assert min(limit for limit in limits if limit) < 5_000 <= max(limit for limit in limits if limit)
    assert "derived from the budget" in retried[0].message
    assert spent.cost == pytest.approx(model.usd), "what was cut is billed too"


async def test_later_answers_have_the_limit_that_earlier_ones_needed() -> None:
    model = Model(5_000)
    backend = ScriptedBackend(model, seconds=1.0)
    await run(backend, inputs(300), prices=PRICES, max_usd=40.0, max_inflight=20)
    assert len(backend.requests) < 345, "only agents of the first requests were asked twice"


async def test_a_limit_that_the_server_refuses_is_lowered() -> None:
    model = Model(20, accepts=4_096)
    backend = ScriptedBackend(model, seconds=1.0)
    results = await run(backend, inputs(100), prices=PRICES, max_usd=1_000.0, max_inflight=10)
    assert [result.output for result in results] == [ANSWER] * 100
    assert len(backend.requests) <= 130


async def test_an_answer_that_no_limit_is_enough_for_is_truncated() -> None:
    backend = ScriptedBackend(Model(10**6, accepts=8_192), seconds=1.0)
    [result] = await run(backend, ["x"], prices=PRICES, max_retries=0, max_usd=100.0)
    assert result.error is not None
    assert result.error.kind is ErrorKind.TRUNCATED
    assert backend.requests[-1].sampling.max_tokens == 8_192


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_no_length_of_answers_makes_a_run_exceed_its_budget(seed: int) -> None:
    dice = random.Random(seed)
    limit, window = dice.choice((0.05, 0.5, 3.0)), dice.choice((None, 8_000, 400_000))
    model = Model(lambda dice: int(10 ** (dice.random() * 4.3)), tool_turns=dice.randint(0, 2), seed=seed)

    def answer(request: Request) -> Answer:
        fault = dice.choice(("", "", "", "", "limited", "aborted"))
        if fault == "limited":
            raise BackendError(ErrorKind.RATE_LIMITED, "later", status=429, retry_after=0.1)
        found = model(request)
        if fault == "aborted":
            raise BackendError(ErrorKind.SERVER, "given up", status=200)
        return found

    results = await run(
        ScriptedBackend(answer, seconds=1.0, context_tokens=window), inputs(200), prices=PRICES, max_usd=limit,
        max_inflight=dice.choice((8, 64, 200)), tools=[waiting_tool(0.5)],
    )  # fmt: skip
    assert len(results) == 200
    assert 0 < model.usd <= limit
    kinds = {result.error.kind for result in results if result.error}
    assert kinds <= {ErrorKind.BUDGET, ErrorKind.SERVER, ErrorKind.TRUNCATED}


async def test_the_limit_is_told_once_and_the_users_own_is_kept() -> None:
    for options, told in (({}, 1), ({"max_tokens": 700}, 0)):
        log, backend = EventList(), ScriptedBackend(Model(), seconds=1.0)
        await run(backend, inputs(40), prices=PRICES, max_usd=1.0, events=log, **options)
        notices = [event.text for event in log.events if isinstance(event, Notice) and "max_tokens" in event.text]
        assert len(notices) == told
        if told:
            assert f"limits answers to {backend.requests[0].sampling.max_tokens:,} tokens" in notices[0]
            assert "Set max_tokens" in notices[0]
        else:
            assert {request.sampling.max_tokens for request in backend.requests} == {options.get("max_tokens")}


async def test_a_run_without_a_budget_sends_no_limit() -> None:
    backend = ScriptedBackend(Model(), seconds=1.0)
    await run(backend, inputs(3), prices=PRICES)
    assert {request.sampling.max_tokens for request in backend.requests} == {None}


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"max_usd": 0.001}, r"max_usd=0.001 does not pay for one request: .* 1,024 of answer. Allow more than \$0.0"),
        ({"max_usd": 0.001, "max_tokens": 5_000}, "5,000 of answer"),
        ({"max_total_tokens": 1_000}, "max_total_tokens=1,000 does not pay for one request"),
    ],
)
async def test_a_budget_that_cannot_pay_one_request_is_refused_before_the_run(
    budget: dict[str, Any], message: str
) -> None:
    backend = ScriptedBackend(Model())
    with pytest.raises(SpecError, match=message):
        await run(backend, inputs(3), prices=PRICES, **budget)
    assert not backend.requests


@pytest.mark.parametrize("budget_first", [True, False])
async def test_a_checkpoint_is_resumed_with_and_without_a_budget(tmp_path: Path, *, budget_first: bool) -> None:
    budget = {"max_usd": 1.0}
    first, second = (budget, {}) if budget_first else ({}, budget)
    before = ScriptedBackend(Model(), seconds=1.0)
    await run(before, inputs(10), prices=PRICES, checkpoint_dir=tmp_path, **first)
    after = ScriptedBackend(Model(), seconds=1.0)
    results = await run(after, inputs(15), prices=PRICES, checkpoint_dir=tmp_path, **second)
    assert [result.output for result in results] == [ANSWER] * 15
    assert len(after.requests) == 5


async def test_a_prompt_that_fills_the_window_leaves_room_for_the_derived_limit() -> None:
    """As vLLM: a request whose prompt and max_tokens exceed the window is rejected."""
    window = 8_000

    def answer(request: Request) -> Answer:
        prompt, limit = len(asked(request)) // 4, request.sampling.max_tokens or 1
        if prompt + limit > window:
            raise BackendError(ErrorKind.CONTEXT_OVERFLOW, "the maximum context length is 8000", status=400)
        return say(ANSWER, Usage(prompt, 0, 20))

    backend = ScriptedBackend(answer, seconds=1.0, context_tokens=window)
    sizes = [100, 8_000, 27_000, 30_500]
    results = await run(backend, ["x" * size for size in sizes], prices=PRICES, max_usd=5.0)
    assert [result.output for result in results] == [ANSWER] * len(sizes)
