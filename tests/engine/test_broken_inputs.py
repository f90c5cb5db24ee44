"""Inputs that break off: what was asked before comes with the error."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_harness import asked, run, stream
from tests.support.event_list import EventList
from tests.support.shared_run_workers import Link, calling, working

from batch_agent import BackendError, BatchAgent, ErrorKind, Flow, RunStopped, SpecError
from batch_agent.core.agent_config import Job
from batch_agent.core.events import AgentFinished
from batch_agent.core.requests import Request
from batch_agent.data.row_iterators import ThreadIterator
from batch_agent.engine.job_source import InputSource, JobSource
from batch_agent.testing import ScriptedBackend, say


def echo(request: Request) -> Any:
    return say(asked(request))


class Lost(BaseException):
    """As libraries written in Rust raise when they panic."""


def breaking(after: int, error: BaseException) -> Iterator[str]:
    yield from map(str, range(after))
    raise error


async def breaking_later(after: int, error: BaseException) -> AsyncIterator[str]:
    for number in range(after):
        yield str(number)
    raise error


class Rows(Sequence[str]):
    """A list whose third row cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            raise ConnectionError("gone")
        return str(index)

    def __iter__(self) -> Iterator[str]:
        return iter("01234")


@pytest.mark.parametrize("error", [ConnectionError("gone"), Lost("gone"), asyncio.CancelledError("gone")])
@pytest.mark.parametrize("made", [breaking, breaking_later, lambda n, e: ThreadIterator(breaking(n, e))])
async def test_results_before_a_broken_input_come_with_the_error(
    made: Callable[[int, BaseException], Any], error: BaseException
) -> None:
    after = 256 if made not in (breaking, breaking_later) else 30  # rows that a thread reads together
    with pytest.raises(RunStopped, match=f"after {after}: {type(error).__name__}: gone") as stopped:
        await run(ScriptedBackend(echo), made(after, error))
    assert [result.text for result in stopped.value.results] == [str(number) for number in range(after)]
    assert stopped.value.kind is ErrorKind.INPUTS
    assert isinstance(stopped.value.__cause__, type(error))


async def test_inputs_that_raise_at_once_send_no_request() -> None:
    backend = ScriptedBackend(echo)
    with pytest.raises(RunStopped, match="The inputs cannot be read: ConnectionError: gone") as stopped:
        await run(backend, breaking(0, ConnectionError("gone")))
    assert stopped.value.results == []
    assert backend.requests == []


async def test_inputs_whose_iterator_cannot_be_created_are_an_error() -> None:
    class Closed:
        def __iter__(self) -> Iterator[str]:
            raise ConnectionError("gone")

    with pytest.raises(RunStopped, match="cannot be read: ConnectionError: gone"):
        await run(ScriptedBackend(echo), Closed())


async def test_an_error_of_a_built_in_reader_about_the_first_row_is_raised_unchanged() -> None:
    with pytest.raises(SpecError, match="no such table"):
        await run(ScriptedBackend(echo), breaking(0, SpecError("no such table")))
    with pytest.raises(RunStopped, match="after 3: SpecError: no such table") as stopped:
        await run(ScriptedBackend(echo), breaking(3, SpecError("no such table")))
    assert len(stopped.value.results) == 3


async def test_a_sequence_that_raises_for_an_index_ends_the_inputs() -> None:
    source = InputSource(JobSource(Rows()), lambda index, value: Job(index, value, value, value), order=[0, 1, 2])
    assert [(await source.take()) is not None for _ in range(2)] == [True, True]
    with pytest.raises(RunStopped, match="ConnectionError: gone"):
        await source.take()


async def test_results_before_broken_inputs_are_written_reported_and_streamed(tmp_path: Path) -> None:
    log, out, got = EventList(), tmp_path / "results.jsonl", []
    with pytest.raises(RunStopped):  # noqa: PT012
        async for result in stream(ScriptedBackend(echo), breaking(5, OSError("gone")), events=log, out=out):
            got.append(result.text)
    assert sorted(got) == list("01234")
    assert sorted(json.loads(line)["output"] for line in out.read_text().splitlines()) == list("01234")
    assert sum(isinstance(event, AgentFinished) for event in log.events) == 5


async def test_a_run_with_a_checkpoint_resumes_where_its_inputs_raised(tmp_path: Path) -> None:
    with pytest.raises(RunStopped):
        await run(ScriptedBackend(echo), breaking(5, OSError("gone")), checkpoint_dir=tmp_path)
    again = ScriptedBackend(echo)
    results = await run(again, iter(map(str, range(8))), checkpoint_dir=tmp_path)
    assert [result.text for result in results] == [str(number) for number in range(8)]
    assert sorted(map(asked, again.requests)) == ["5", "6", "7"]


async def test_a_lost_server_is_the_reported_reason_even_if_the_inputs_raise_too() -> None:
    class Counted:
        def __len__(self) -> int:
            return 50

        def __iter__(self) -> Iterator[str]:
            return breaking(40, OSError("gone"))

    refusing = ScriptedBackend(lambda _: BackendError(ErrorKind.AUTH, "who are you?"))
    with pytest.raises(RunStopped, match="who are you") as stopped:
        await run(refusing, Counted(), max_inflight=1)
    assert stopped.value.kind is ErrorKind.AUTH


@pytest.mark.parametrize("works", [True, False])
async def test_a_shared_run_with_broken_inputs_keeps_its_results(works: bool) -> None:
    link = Link()
    helper = asyncio.create_task(_helping(link)) if not works else None
    got = []
    with pytest.raises(RunStopped, match="after 5: OSError: gone") as stopped:  # noqa: PT012
        async for result in calling(link, breaking(5, OSError("gone")), works=works, backend=ScriptedBackend(echo)):
            got.append(result.text)
    assert stopped.value.kind is ErrorKind.INPUTS
    assert sorted(got) == list("01234")
    if helper is not None:
        await helper


async def _helping(link: Link) -> None:
    await working(link.another(), backend=ScriptedBackend(echo))


async def test_a_flow_with_broken_inputs_keeps_the_results_of_its_stages() -> None:
    flow = Flow(breaking(5, OSError("gone")), backend=ScriptedBackend(echo)).map("say", "{it}")
    with pytest.raises(RunStopped, match="after 5: OSError: gone") as stopped:
        await flow.reduce("join", "Join {n}.").run()
    assert stopped.value.kind is ErrorKind.INPUTS
    assert [result.text for result in stopped.value.results] == list("01234")
    assert stopped.value.flow is not None
    assert len(stopped.value.flow.stages["say"].results) == 5


async def test_a_flow_that_starts_with_a_function_keeps_its_results_when_the_inputs_raise() -> None:
    async def inputs() -> AsyncIterator[str]:
        yield "0"
        yield "1"
        while len(backend.left) < 2:  # both are answered
            await asyncio.sleep(0.1)
        raise OSError("gone")

    backend = ScriptedBackend(echo, seconds=1, has_agent_sessions=True)
    flow = Flow(inputs(), backend=backend).filter(lambda item: True).map("say", "{it}")
    with pytest.raises(RunStopped, match="OSError: gone") as stopped:
        await flow.run()
    assert stopped.value.kind is ErrorKind.INPUTS
    assert sorted(result.text for result in stopped.value.results) == ["0", "1"]


class Nasty:
    """Nothing can be made of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def test_an_input_that_cannot_be_rendered_fails_alone(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    inputs = [{"it": "a"}, {"it": Nasty()}, {"it": "c"}]
    results = await run(ScriptedBackend(echo), inputs, checkpoint_dir=tmp_path / "kept", out=out)
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error is not None
    assert results[1].error.kind is ErrorKind.BAD_INPUT
    assert len(out.read_text().splitlines()) == 3


def test_a_keyboard_interrupt_from_the_inputs_is_raised_unchanged() -> None:
    with pytest.raises(KeyboardInterrupt):
        BatchAgent.run_sync(task="{it}", inputs=breaking(3, KeyboardInterrupt()), backend=ScriptedBackend(echo))
