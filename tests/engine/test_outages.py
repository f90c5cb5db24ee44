"""A backend that is gone, refuses or comes back: one explanation, nothing lost."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.engine_harness import asked, now, run, stream
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, RunStopped
from batch_agent.core.events import Paused
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say


def gone_between(start: float, end: float) -> ScriptedBackend:
    """Answers after a second each, but for a time in which nobody is there."""

    def answer(request: Request) -> Answer:
        if start <= now() < end:
            return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect to it")
        return say(asked(request))

    return ScriptedBackend(answer, seconds=1.0)


async def test_an_outage_shorter_than_the_patience_fails_no_agent() -> None:
    backend = gone_between(5, 15)
    log = EventList()
    results = await run(backend, [str(n) for n in range(100)], max_inflight=8, events=log)
    assert [result.output for result in results] == [str(n) for n in range(100)]
    assert now() < 15 + 5 + 100 / 8 + 2
    failed = len(backend.requests) - 100
    assert failed < 60  # not 8 requests a second all the time
    assert any(isinstance(event, Paused) and "Cannot connect" in event.reason for event in log.events)


async def test_a_lasting_outage_stops_the_run_with_one_error_that_has_the_results() -> None:
    backend = gone_between(5, 10**9)
    with pytest.raises(RunStopped, match="Cannot connect to it") as stopped:
        await run(backend, [str(n) for n in range(1000)], max_inflight=8)
    assert stopped.value.kind is ErrorKind.UNAVAILABLE
    assert [result.index for result in stopped.value.results] == list(range(32))
    assert all(result.ok for result in stopped.value.results)
    assert 20 <= now() < 30
    assert len(backend.requests) < 120


async def test_max_retries_determines_how_long_a_dead_server_is_waited_for() -> None:
    with pytest.raises(RunStopped):
        await run(gone_between(0, 10**9), ["a", "b", "c", "d"], max_retries=0)
    assert now() <= 1.0


async def test_a_stream_yields_finished_results_before_it_raises() -> None:
    seen: list[AgentResult] = []

    async def read() -> None:
        async for result in stream(gone_between(2, 10**9), [str(n) for n in range(20)], max_inflight=4):
            seen.append(result)

    with pytest.raises(RunStopped):
        await read()
    assert len(seen) == 4


async def test_a_run_stopped_by_an_outage_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    inputs, answered = [str(n) for n in range(40)], set[str]()

    def answer(request: Request) -> Answer:
        if len(answered) == 8:
            return BackendError(ErrorKind.UNAVAILABLE, "Cannot connect to it")
        answered.add(asked(request))
        return say(asked(request))

    with pytest.raises(RunStopped):
        await run(ScriptedBackend(answer), inputs, max_inflight=4, checkpoint_dir=tmp_path)
    backend = ScriptedBackend(lambda request: say(asked(request)))
    results = await run(backend, inputs, checkpoint_dir=tmp_path)
    assert [result.output for result in results] == inputs
    assert sorted(map(asked, backend.requests)) == sorted(set(inputs) - answered)


async def test_a_wrong_api_key_is_one_error_and_not_one_per_agent() -> None:
    backend = ScriptedBackend(lambda request: BackendError(ErrorKind.AUTH, "HTTP 401: bad key", status=401))
    with pytest.raises(RunStopped, match="bad key") as stopped:
        await run(backend, [str(n) for n in range(10_000)])
    assert stopped.value.kind is ErrorKind.AUTH
    assert len(backend.requests) <= 8


async def test_one_refused_prompt_is_one_failed_agent() -> None:
    def answer(request: Request) -> Answer:
        if asked(request) == "7":
            return BackendError(ErrorKind.AUTH, "HTTP 403: blocked by the firewall", status=403)
        return say("fine")

    results = await run(ScriptedBackend(answer), [str(n) for n in range(50)])
    assert [result.index for result in results if not result.ok] == [7]


async def test_three_poisoned_prompts_in_a_row_do_not_end_the_run() -> None:
    def answer(request: Request) -> Answer:
        if int(asked(request)) < 3:
            return BackendError(ErrorKind.CONNECTION, "reset by peer")
        return say("fine")

    results = await run(ScriptedBackend(answer, seconds=1.0), [str(n) for n in range(20)], max_inflight=1)
    assert [result.index for result in results if not result.ok] == [0, 1, 2]


async def test_backend_leave_is_called_for_every_agent_that_ends() -> None:
    backend = ScriptedBackend(lambda request: say("fine"), has_agent_sessions=True)
    results = await BatchAgent.run(task="{it}", inputs=["a", "b"], backend=backend)
    assert sorted(backend.left) == sorted(result.key for result in results)


def rejecting(is_bad: Callable[[str], bool]) -> ScriptedBackend:
    """Answers after a second, and rejects some requests at once."""

    async def answer(request: Request) -> Answer:
        if is_bad(asked(request)):
            return BackendError(ErrorKind.BAD_REQUEST, "unknown option", status=400)
        await asyncio.sleep(1.0)
        return say(asked(request), Usage(5, 0, 1))

    return ScriptedBackend(answer)


async def test_a_backend_that_rejects_everything_stops_the_run_and_the_mended_one_resumes_it(tmp_path: Path) -> None:
    inputs = [str(n) for n in range(1000)]
    bad = rejecting(lambda text: True)
    with pytest.raises(RunStopped, match=r"rejects every request: .* unknown option .*resumes") as stopped:
        await run(bad, inputs, max_inflight=8, checkpoint_dir=str(tmp_path / "checkpoint"))
    assert stopped.value.kind is ErrorKind.BAD_REQUEST
    assert len(bad.requests) < 70
    good = rejecting(lambda text: False)
    results = await run(good, inputs, max_inflight=8, checkpoint_dir=str(tmp_path / "checkpoint"))
    assert [result.output for result in results] == inputs
    assert len(good.requests) == 1000


async def test_bad_prompts_at_the_beginning_are_left_out_by_a_resume_without_them(tmp_path: Path) -> None:
    options = {"max_inflight": 8, "checkpoint_dir": str(tmp_path / "checkpoint")}
    inputs, backend = [str(n) for n in range(200)], rejecting(lambda text: int(text) < 70)
    with pytest.raises(RunStopped, match="retry_failed=False"):
        await run(backend, inputs, **options)
    results = await run(backend, inputs, retry_failed=False, **options)
    assert [result.index for result in results if not result.ok] == list(range(70))


async def test_bad_prompts_among_good_ones_do_not_stop_a_run_nor_its_repetition(tmp_path: Path) -> None:
    options = {"max_inflight": 8, "checkpoint_dir": str(tmp_path / "checkpoint")}
    inputs, backend = [str(n) for n in range(300)], rejecting(lambda text: int(text) >= 100)
    first = await run(backend, inputs, **options)
    assert [result.index for result in first if not result.ok] == list(range(100, 300))
    again = await run(backend, inputs, **options)  # the rejected ones are tried again, and nobody else
    assert [result.ok for result in again] == [result.ok for result in first]
    assert len(backend.requests) == 300 + 200
