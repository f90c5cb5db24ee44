"""Pydantic AI: its own limit on a model's requests, which leaves a slot while tools run."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.peers.work import MODEL, SYSTEM, Stopwatch, Tally, Work, gathered


async def run(work: Work, tally: Tally) -> None:
    async with AsyncOpenAI(base_url=f"{work.url}/v1", max_retries=work.retries) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(
            ConcurrencyLimitedModel(model, limiter=work.inflight),
            instructions=SYSTEM,
            tools=[] if work.tool_s is None else [tally.look],
        )

        async def one(number: int) -> str:
            return (await agent.run(work.prompt(number))).output

        async def streamed(number: int) -> str:
            watch, pieces = Stopwatch(tally), list[str]()
            async with agent.run_stream(work.prompt(number)) as result:
                async for piece in result.stream_text(delta=True, debounce_by=None):
                    watch.see(piece)
                    pieces.append(piece)
            return "".join(pieces)

        await gathered(work, tally, streamed if work.is_streamed else one, None if work.is_streamed else work.agents)
