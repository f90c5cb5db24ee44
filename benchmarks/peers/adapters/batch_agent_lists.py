"""Ours for single prompts over a pool: many of them in each request."""

from batch_agent import VLLMPool
from benchmarks.peers.work import MODEL, SYSTEM, Tally, Work


async def run(work: Work, tally: Tally) -> None:
    prompts = [SYSTEM + work.prompt(agent) for agent in range(work.agents)]
    async with VLLMPool(list(work.urls), model=MODEL) as pool:
        for agent, response in enumerate(await pool.send_all_batched(prompts)):
            tally.tell(agent, response.text)
