"""Aurora Swarm's pool: lists of prompts to /v1/completions, which it sends without a chat template."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

from urllib.parse import urlsplit

from aurora_swarm import AgentEndpoint, VLLMPool

from benchmarks.peers.work import MODEL, SYSTEM, Tally, Work


async def run(work: Work, tally: Tally) -> None:
    parts = [urlsplit(url) for url in work.urls]
    endpoints = [AgentEndpoint(part.hostname, part.port) for part in parts]
    prompts = [SYSTEM + work.prompt(agent) for agent in range(work.agents)]
    async with VLLMPool(endpoints, model=MODEL, max_tokens=512, concurrency=work.inflight) as pool:
        for agent, response in enumerate(await pool.send_all_batched(prompts)):
            tally.tell(agent, response.text)
