"""A process that runs programs, as a user's does: `python parent_process.py <alone|forked> <mark>`.

It starts a process tree, prints its ids, and waits; `forked`, it has a fork that holds all of its descriptors."""

import asyncio
import os
import sys
import time

from tests.support.process_harness import family

from batch_agent.supervisor import start_program


async def main(way: str, mark: str) -> None:
    async with start_program(family(mark, "stay")) as program:
        members = await anext(program.lines())
        fork = os.fork() if way == "forked" else None
        if fork == 0:
            time.sleep(600)
            os._exit(0)
        print(fork, members.decode(), flush=True)
        await program.wait()


asyncio.run(main(*sys.argv[1:]))
