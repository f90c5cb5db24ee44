"""Inputs come from anything that can be iterated over, and are read only as fast as they are worked on."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.engine_harness import asked, now, run, stream
from tests.support.event_list import EventList

from batch_agent import BatchAgent, ErrorKind, RunStopped, SpecError
from batch_agent.core.events import Notice, RunStarted
from batch_agent.core.requests import Request
from batch_agent.testing import ScriptedBackend, say


def echo(request: Request) -> Any:
    return say(asked(request))


async def test_results_are_in_input_order_whichever_agent_finishes_first() -> None:
    async def answer(request: Request) -> Any:
        await asyncio.sleep(10 - int(asked(request)))
        return say(asked(request))

    results = await run(ScriptedBackend(answer), list("0123456789"), max_inflight=10)
    assert [result.text for result in results] == list("0123456789")
    assert [result.index for result in results] == list(range(10))
    assert [result.input for result in results] == list("0123456789")


async def test_equal_inputs_each_get_a_result() -> None:
    backend = ScriptedBackend(echo)
    results = await run(backend, ["same"] * 5)
    assert [result.text for result in results] == ["same"] * 5
    assert len(backend.requests) == 5
    assert len({result.key for result in results}) == 5


@pytest.mark.parametrize("nothing", [[], (), iter([]), {}.keys()])
async def test_no_inputs_give_no_results(nothing: Any) -> None:
    assert await run(ScriptedBackend(echo), nothing) == []


async def test_inputs_may_come_from_an_async_generator() -> None:
    async def inputs() -> AsyncIterator[str]:
        for letter in "abc":
            yield letter

    log = EventList()
    results = await run(ScriptedBackend(echo), inputs(), events=log)
    assert [result.text for result in results] == ["a", "b", "c"]
    [started] = [event for event in log.events if isinstance(event, RunStarted)]
    assert started.total is None


async def test_a_million_lazy_inputs_are_read_only_as_slots_become_free() -> None:
    read = 0

    def inputs() -> Iterator[str]:
        nonlocal read
        for read in range(1, 1_000_001):
            yield str(read)

    got = 0
    async with stream(ScriptedBackend(echo, seconds=1), inputs(), max_inflight=8) as results:
        async for _ in results:
            got += 1
            if got == 50:
                break
    assert read <= 50 + 2 * 8


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_number_of_inputs() -> None:
    def inputs() -> Iterator[str]:
        for number in range(500):
            yield f"{number} " + "x" * 50_000

    backend = ScriptedBackend(lambda request: say("done"), seconds=1)
    backend.requests = Forgetful()
    tracemalloc.start()
    try:
        async for result in stream(backend, inputs(), max_inflight=32):
            assert result.ok
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # of 25 MB


class Forgetful(list[Request]):
    def append(self, item: Request) -> None:
        pass


async def test_an_iterator_that_raises_midway_ends_the_run_after_the_running_agents() -> None:
    def inputs() -> Iterator[str]:
        yield from "abc"
        raise OSError("the file is gone")

    got = []
    with pytest.raises(RunStopped, match=r"after [13]: OSError: the file is gone"):  # noqa: PT012
        async for result in stream(ScriptedBackend(echo, seconds=10), inputs()):
            got.append(result.text)
    assert sorted(got) == ["a", "b", "c"]
    assert now() == 10


async def test_an_async_iterator_that_raises_midway_ends_the_run_after_the_running_agents() -> None:
    async def inputs() -> AsyncIterator[str]:
        yield "a"
        raise OSError("the file is gone")

    got = []
    with pytest.raises(RunStopped, match=r"after [13]: OSError: the file is gone"):  # noqa: PT012
        async for result in stream(ScriptedBackend(echo, seconds=10), inputs()):
            got.append(result.text)
    assert got == ["a"]


async def test_one_input_that_does_not_fit_fails_alone() -> None:
    inputs = [{"it": "a"}, {"that": "b"}, 17, {"it": "c"}]
    backend = ScriptedBackend(echo)
    results = await run(backend, inputs)
    kinds = [result.error.kind if result.error else None for result in results]
    assert kinds == [None, ErrorKind.BAD_INPUT, ErrorKind.BAD_INPUT, None]
    assert [asked(request) for request in backend.requests] == ["a", "c"]
    assert [result.input for result in results] == inputs


@pytest.mark.parametrize("odd", [{"it": 2**80}, {"it": "\ud800"}, {"it": float("nan")}, {"it": b"\xff"}, {"it": {1j}}])
async def test_an_input_that_is_not_json_serializable_does_not_stop_other_agents(odd: Any) -> None:
    results = await run(ScriptedBackend(echo), [{"it": "a"}, odd, {"it": "c"}])
    assert [result.index for result in results] == [0, 1, 2]
    assert [results[0].text, results[2].text] == ["a", "c"]


async def test_a_first_input_that_does_not_fit_the_task_sends_no_request() -> None:
    backend = ScriptedBackend(echo)
    with pytest.raises(SpecError, match="Input 0"):
        await run(backend, [{"that": "a"}, {"it": "b"}])
    assert backend.requests == []


async def test_a_misspelt_field_is_refused_and_nothing_is_sent() -> None:
    backend = ScriptedBackend(echo)
    for task in ("{id}: {Review Tekst}", "{id}: {tags[3]}", "{id}: {user[nmae]}", "{id}: {user.name.upper()}"):
        with pytest.raises(SpecError, match="Input 0: The task"):
            await BatchAgent.run(
                task=task,
                inputs=[{"id": 1, "Review Text": "a", "tags": ["x"], "user": {"name": "Ann"}}],
                backend=backend,
            )
    assert backend.requests == []


async def test_inputs_that_lack_a_field_with_spaces_fail_alone() -> None:
    rows = [{"id": n, **({"First Name": "Ann"} if n != 2 else {})} for n in range(4)]
    backend = ScriptedBackend(echo)
    results = await BatchAgent.run(task="{id} {First Name}", inputs=rows, backend=backend)
    assert [result.ok for result in results] == [True, True, False, True]
    assert sorted(map(asked, backend.requests)) == ["0 Ann", "1 Ann", "3 Ann"]


async def test_braces_that_are_sent_verbatim_are_reported() -> None:
    log = EventList()
    options: dict[str, Any] = {"task": "{id} {some words} {}", "system_prompt": "Of {id} and {other}.", "events": log}
    await BatchAgent.run(inputs=[{"id": 1}], backend=ScriptedBackend(echo), **options)
    told = [event.text for event in log.events if isinstance(event, Notice)]
    assert [text.partition(",")[0] for text in told] == [
        "The task contains {some words}",
        "The system prompt contains {id}",
    ]


async def test_every_input_gives_exactly_one_result() -> None:
    results = await run(ScriptedBackend(echo), iter(map(str, range(1000))))
    assert [result.index for result in results] == list(range(1000))
