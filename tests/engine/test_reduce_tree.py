"""Results that do not fit one prompt together are reduced in parts: each as soon as it is there, the same each time."""

import asyncio
import random
from typing import Any

import pytest
from tests.support.engine_harness import asked, now
from tests.support.flow_harness import entries, joining, leaves, prompts

from batch_agent import BackendError, BatchAgent, ErrorKind, Flow, RunStopped
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say

WINDOW = 1000


class Counting(ScriptedBackend):
    """Says how many tokens a text has, after a while that differs."""

    async def count_tokens(self, text: str) -> int | None:
        await asyncio.sleep(random.Random(text).random())
        return len(text) // 4


def run(backend: ScriptedBackend, count: int, **options: Any) -> Any:
    inputs = [{"it": str(number)} for number in range(count)]
    return BatchAgent.run_with_reduce(task="Do {it}", inputs=inputs, reduce="Join {n}", backend=backend, **options)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize("kind", [ScriptedBackend, Counting])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
async def test_every_result_reaches_the_final_reduce_once(kind: type[ScriptedBackend], count: int) -> None:
    backend = kind(joining, context_tokens=WINDOW)
    results, summary = await run(backend, count)
    assert summary.split() == numbers(count)
    joins = prompts(backend, beginning="Join")
    assert len(results.stages["reduce"].results) == len(joins)
    assert (len(joins) > 1) == (count >= 40)
    assert max(len(join) / (4 if kind is Counting else 2.5) for join in joins) <= WINDOW
    assert joins[-1].startswith(f"Join {count}\n")


async def test_partial_reduces_are_marked_and_distinguished_from_results() -> None:
    backend = ScriptedBackend(joining, context_tokens=WINDOW)
    await run(backend, 20)
    *parts, last = prompts(backend, beginning="Join")
    for part in parts:
        assert f"[These are {len(entries(part))} of the results." in part
        assert f"Join {len(entries(part))}\n" in part
    assert "These are" not in last
    assert "[Some entries stand for several results" in last
    merged = [entry for entry in entries(last) if entry["status"] == "merged"]
    assert [entry["results"] for entry in merged] == [len(entry["output"].split()) for entry in merged]


@pytest.mark.parametrize("kind", [ScriptedBackend, Counting])
async def test_prompts_do_not_depend_on_which_item_finishes_first(kind: type[ScriptedBackend]) -> None:
    def shuffled(seed: int) -> ScriptedBackend:
        chance = random.Random(seed)

        async def answer(request: Request) -> Answer:
            await asyncio.sleep(chance.random() * 10)
            return joining(request)

        return kind(answer, inflight=16, context_tokens=WINDOW)

    async def stream() -> Any:
        for number in range(40):
            yield {"it": str(number)}

    seen = []
    for seed in range(3):
        backend = shuffled(seed)
        await run(backend, 40)
        seen.append(sorted(prompts(backend)))
    backend = shuffled(3)
    options: dict[str, Any] = {"task": "Do {it}", "inputs": stream(), "reduce": "Join {n}", "backend": backend}
    await BatchAgent.run_with_reduce(**options)  # whose number nobody knows before
    assert seen == [sorted(prompts(backend))] * 3


async def test_a_group_is_reduced_while_another_group_waits_for_a_slow_result() -> None:
    began: list[tuple[float, list[Any]]] = []

    async def answer(request: Request) -> Answer:
        task = asked(request)
        if task.startswith("Join"):
            began.append((now(), leaves(task)))
        await asyncio.sleep(100 if task == "Do 39" else 1)
        return joining(request)

    _, summary = await run(ScriptedBackend(answer, inflight=40, context_tokens=WINDOW), 40)
    assert summary.split() == numbers(40)
    early = [leaf for time, seen in began if time < 50 for leaf in seen]
    assert len(set(early)) >= 32
    assert "39" not in early
    assert len([time for time, _ in began if time > 50]) <= 2


@pytest.mark.parametrize("told_by", ["server", "window"])
async def test_a_reduce_that_does_not_fit_after_all_is_halved(told_by: str) -> None:
    def strict(request: Request) -> Answer:
        if len(asked(request)) > 1_500:
            return BackendError(ErrorKind.CONTEXT_OVERFLOW, "maximum context length is 1500 characters")
        return joining(request)

    window = None if told_by == "server" else 4000
    backend = ScriptedBackend(strict, context_tokens=window)
    _, summary = await run(backend, 30)
    assert summary.split() == numbers(30)


async def test_reduce_answers_that_never_fit_are_an_error() -> None:
    def strict(request: Request) -> Answer:
        task = asked(request)
        if task.startswith("Join") and len(entries(task)) > 1:
            return BackendError(ErrorKind.CONTEXT_OVERFLOW, "too long")
        return say("x" * 400)

    backend = ScriptedBackend(strict)
    with pytest.raises(RunStopped) as stopped:
        await run(backend, 8)
    assert stopped.value.kind is ErrorKind.CONTEXT_OVERFLOW
    assert len(stopped.value.results) == 8
    assert len(prompts(backend, beginning="Join")) < 24


async def test_a_result_too_large_for_any_prompt_is_shown_as_an_error() -> None:
    def answer(request: Request) -> Answer:
        return joining(request) if asked(request) != "Do 1" else say("y" * 10_000)

    backend = ScriptedBackend(answer, context_tokens=WINDOW)
    results, _ = await run(backend, 3)
    assert all(result.ok for result in results)
    [join] = prompts(backend, beginning="Join")
    told = entries(join)[1]
    assert (told["status"], told["index"], told["input"]) == ("error", 1, {"it": "1"})
    assert told["error"]["kind"] == "context_overflow"
    assert "too long to be shown" in told["error"]["message"]


async def test_an_error_entry_with_many_fields_is_shown_without_them() -> None:
    fields = {f"field_{number}": "z" * 190 for number in range(20)}
    backend = ScriptedBackend(joining, context_tokens=WINDOW)
    results, _ = await BatchAgent.run_with_reduce(task="Do {field_0}", inputs=[fields], reduce="Join", backend=backend)
    [join] = prompts(backend, beginning="Join")
    [told] = entries(join)
    assert (told["status"], sorted(told)) == ("error", ["error", "index", "status"])
    assert results[0].ok


async def test_without_a_known_window_reduce_prompts_have_a_default_size() -> None:
    backend = ScriptedBackend(joining)
    _, summary = await run(backend, 400)
    joins = prompts(backend, beginning="Join")
    assert summary.split() == numbers(400)
    assert len(joins) > 1
    assert max(map(len, joins)) < 35_000


async def test_reduce_prompts_leave_room_for_the_answer_for_any_result_sizes() -> None:
    for size in range(380, 480, 4):

        def answer(request: Request, size: int = size) -> Answer:
            return joining(request) if asked(request).startswith("Join") else say("x" * size)

        backend = ScriptedBackend(answer, context_tokens=WINDOW)
        await run(backend, 8)
        longest = max(len(join) / 2.5 for join in prompts(backend, beginning="Join"))
        assert longest <= WINDOW - WINDOW // 8 - WINDOW // 32


async def test_after_a_failed_partial_reduce_its_group_sends_no_more_requests() -> None:
    async def answer(request: Request) -> Answer:
        task = asked(request)
        if task.startswith("Join") and '"index":0,' in task:
            return BackendError(ErrorKind.BAD_REQUEST, "no")
        await asyncio.sleep(10)
        return say("y" * 400)

    backend = ScriptedBackend(answer, inflight=200, context_tokens=WINDOW)
    with pytest.raises(RunStopped):
        await run(backend, 200)
    joins = prompts(backend, beginning="Join")
    assert len(joins) > 8
    assert not any('"status":"merged"' in join for join in joins)


async def test_each_group_too_large_for_a_prompt_has_its_own_reduce_tree() -> None:
    backend = ScriptedBackend(joining, context_tokens=WINDOW)
    inputs = [{"it": str(number), "kind": "even" if number % 2 == 0 else "odd"} for number in range(60)]
    outcome = await (
        Flow(inputs, backend=backend).map("do", "Do {it}").reduce("all", "Join {n} that are {kind}", group_by="kind")
    ).run()
    assert [(item["kind"], item["n"], item["all"].split()) for item in outcome.items] == [
        ("even", 30, numbers(60)[0::2]),
        ("odd", 30, numbers(60)[1::2]),
    ]


async def test_a_failed_partial_reduce_fails_only_its_group() -> None:
    def answer(request: Request) -> Answer:
        task = asked(request)
        is_poisoned = task.startswith("Join") and "These are" in task and "odd" in task.split("\n")[0]
        return BackendError(ErrorKind.BAD_REQUEST, "no") if is_poisoned else joining(request)

    backend = ScriptedBackend(answer, context_tokens=WINDOW)
    inputs = [{"it": str(number), "kind": "even" if number % 2 == 0 else "odd"} for number in range(60)]
    outcome = await (
        Flow(inputs, backend=backend).map("do", "Do {it}").reduce("all", "Join {n} that are {kind}", group_by="kind")
    ).run()
    even, odd = outcome.items
    assert even["all"].split() == numbers(60)[0::2]
    assert odd.error is not None
    assert (odd.error.kind, odd.stage, dict(odd)) == (ErrorKind.BAD_REQUEST, "all", {"group": "odd", "kind": "odd"})
