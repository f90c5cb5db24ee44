"""However a program ends, all of its family ends with it."""

import asyncio

import pytest
from tests.support.process_harness import family, marked
from tests.support.process_table import is_alive

from batch_agent.supervisor import Program, ProgramLimits, TooMuchOutput, run_program, start_program


async def met(program: Program, mark: str) -> set[int]:
    """All five of a family that stays."""
    members = {int(member) for member in (await anext(program.lines())).split()}
    assert len(members) == 5
    assert members <= marked(mark)
    return members


async def test_processes_that_a_program_leaves_are_killed_when_it_has_ended(mark: str) -> None:
    ended = await run_program(family(mark, "exit"))
    members = ended.out.split()
    assert (ended.code, len(members)) == (0, 5)
    assert not any(is_alive(int(member)) for member in members)


async def test_leaving_the_context_kills_all_processes(mark: str) -> None:
    async with start_program(family(mark, "stay")) as program:
        await met(program, mark)
    assert marked(mark) == set()


async def test_a_grace_period_does_not_save_any_process(mark: str) -> None:
    async with start_program(family(mark, "stay"), ProgramLimits(grace=60)) as program:
        await met(program, mark)
    assert marked(mark) == set()
    assert (await program.wait()).code == -15


async def test_an_error_in_the_context_kills_all_processes(mark: str) -> None:
    async def fail() -> None:
        async with start_program(family(mark, "stay")) as program:
            await met(program, mark)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert marked(mark) == set()


async def test_a_timeout_kills_all_processes(mark: str) -> None:
    async def take_too_long() -> None:
        async with asyncio.timeout(None) as clock, start_program(family(mark, "stay")) as program:
            await met(program, mark)
            clock.reschedule(asyncio.get_running_loop().time())
            await program.wait()

    with pytest.raises(TimeoutError):
        await take_too_long()
    assert marked(mark) == set()


async def test_a_cancellation_kills_all_processes(mark: str) -> None:
    is_met = asyncio.Event()

    async def use() -> None:
        async with start_program(family(mark, "stay")) as program:
            await met(program, mark)
            is_met.set()
            await program.wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(use())
        await is_met.wait()
        task.cancel()
    assert task.cancelled()
    assert marked(mark) == set()


async def test_too_much_output_kills_all_processes(mark: str) -> None:
    async def read() -> None:
        async with start_program(family(mark, "flood"), ProgramLimits(max_line_bytes=1_000_000)) as program:
            await met(program, mark)
            await anext(program.lines())

    with pytest.raises(TooMuchOutput):
        await read()
    assert marked(mark) == set()


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_start_leaves_no_process(mark: str, steps: int) -> None:
    """At each point of it, as far as the loop has gone by then."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_program(family(mark, "stay")))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
    assert marked(mark) == set()


@pytest.mark.slow
async def test_eight_process_trees_stopped_at_once_leave_no_process(mark: str) -> None:
    everybody = asyncio.Barrier(9)

    async def use() -> None:
        async with start_program(family(mark, "stay")) as program:
            await anext(program.lines())
            await everybody.wait()
            await program.wait()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(use()) for _ in range(8)]
        await everybody.wait()
        assert len(marked(mark)) >= 8 * 5
        for task in tasks:
            task.cancel()
    assert marked(mark) == set()
