"""A run in the batch lane as a process of its own, to be killed: `python batch_lane_process.py URL CHECKPOINT LANE`.

It waits less than a run of a user does, and prints the answers as JSON."""

import asyncio
import json
import sys
from typing import Any

from batch_agent import BatchAgent, Tool
from batch_agent.lanes import batch_backend, batch_tracker
from batch_agent.schedule.retry import Backoff

AGENTS = 6


@Tool.define(effect="read")
def look_up(key: str) -> str:
    """Looks up a key. A tool that changes something would not be called again after a kill."""
    return f"value of {key}"


def hurry() -> None:
    """A server on the same machine lists what it has accepted at once, and is done soon."""
    for module in (batch_backend, batch_tracker):
        module.CERTAIN_SECONDS = 0.3  # type: ignore[attr-defined]
    defaults: Any = batch_backend.BatchBackend.__init__.__kwdefaults__
    defaults["polls"] = Backoff(0.05, 0.2)


async def main(url: str, checkpoint: str, lane: Any) -> None:
    results = await BatchAgent.run(
        task="Report on {name}",
        inputs=[{"name": f"item {number}"} for number in range(AGENTS)],
        tools=[look_up],
        backend=url,
        lane=lane,
        checkpoint_dir=checkpoint,
        max_tokens=40,
    )
    print(json.dumps([result.output if result.ok else str(result.error) for result in results]))


if __name__ == "__main__":
    hurry()
    asyncio.run(main(*sys.argv[1:]))
