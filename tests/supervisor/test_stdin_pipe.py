"""What a program reads while it runs."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.support.process_harness import ENV, sh

from batch_agent.supervisor import ProgramCommand, ProgramLimits, Stdin, start_program

_COUNTS = "import sys; print(len(sys.stdin.buffer.read()))"


async def test_a_program_reads_its_stdin_to_the_end() -> None:
    async with start_program(
        ProgramCommand([sys.executable, "-I", "-S", "-c", _COUNTS], ENV, None, Stdin.PIPE)
    ) as program:
        for _ in range(3):
            await program.write(b"x" * 300_000)  # more than a pipe holds
        await program.write(b"")
        program.close_input()
        program.close_input()
        assert [line async for line in program.lines()] == [b"900000"]


async def test_lines_are_exchanged_in_both_directions() -> None:
    async with start_program(replace(sh("while read -r line; do echo got $line; done"), stdin=Stdin.PIPE)) as program:
        for word in (b"one", b"two"):
            await program.write(word + b"\n")
            assert await anext(program.lines()) == b"got " + word


async def test_a_program_that_reads_nothing_does_not_keep_its_writer_from_being_cancelled() -> None:
    async with start_program(replace(sh("echo ready; sleep 600"), stdin=Stdin.PIPE)) as program:
        await anext(program.lines())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await program.write(b"x" * 1_000_000)


@pytest.mark.parametrize("how", ["closes", "ends", "is closed by us"])
async def test_a_writer_gets_an_error_when_the_reader_is_gone(how: str) -> None:
    script = {"closes": "exec <&-; sleep 600", "ends": "exit 0", "is closed by us": "sleep 600"}[how]
    async with (
        start_program(replace(sh(script), stdin=Stdin.PIPE), ProgramLimits()) as program,
        asyncio.TaskGroup() as group,
    ):
        writing = group.create_task(_write_without_end(program.write))
        if how == "is closed by us":
            await asyncio.sleep(0)
            program.close_input()
        assert isinstance(await writing, BrokenPipeError)


async def _write_without_end(write: Callable[[bytes], Awaitable[None]]) -> OSError:
    try:
        while True:
            await write(b"x" * 100_000)
    except OSError as error:
        return error
