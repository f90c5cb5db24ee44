"""Who reads what a program writes, and who waits for whom."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from batch_agent.supervisor.output_stream import OutputStream


class Writer:
    """The end of a pipe that a program has, to which it writes for as long as it need not wait."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.written = 0

    async def write(self, chunks: int) -> None:
        for _ in range(chunks):
            with suppress(BlockingIOError):
                self.written += os.write(self._descriptor, b"x" * 65_536)
            await asyncio.sleep(0)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def pipe() -> Iterator[tuple[int, Writer]]:
    read_end, write_end = os.pipe()
    with closing(Writer(write_end)) as writer:
        yield read_end, writer


async def test_a_program_blocks_while_its_output_is_not_read(pipe: tuple[int, Writer]) -> None:
    out, writer = OutputStream(pipe[0]), pipe[1]
    await writer.write(1000)
    assert 0 < writer.written < 1_000_000
    taken = len(await out.read())
    await writer.write(1000)
    assert 0 < taken < writer.written < 2_000_000
    out.end()
    while chunk := await out.read():
        taken += len(chunk)
    assert taken == writer.written


async def test_a_program_whose_output_is_discarded_never_blocks(pipe: tuple[int, Writer]) -> None:
    out, writer = OutputStream(pipe[0]), pipe[1]
    await writer.write(100)
    out.discard()
    await writer.write(1000)
    out.end()
    assert writer.written > 10_000_000
    assert len(bytes(out.excerpt)) < 10_000
    assert await out.read() == b""


async def test_a_waiting_reader_gets_the_end_of_the_output(pipe: tuple[int, Writer]) -> None:
    out = OutputStream(pipe[0])
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(out.read())
        await asyncio.sleep(0)
        out.discard()
    assert taking.result() == b""
    out.end()


async def test_output_ends_with_the_program_even_if_other_processes_hold_the_pipe(pipe: tuple[int, Writer]) -> None:
    out, writer = OutputStream(pipe[0]), pipe[1]
    await writer.write(1)
    out.end()
    assert (len(await out.read()), await out.read()) == (writer.written, b"")
