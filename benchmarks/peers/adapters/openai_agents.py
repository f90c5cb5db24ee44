"""The OpenAI Agents SDK, on the chat completions that other servers have."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from benchmarks.peers.work import MODEL, SYSTEM, Stopwatch, Tally, Work, gathered


async def run(work: Work, tally: Tally) -> None:
    quiet = RunConfig(tracing_disabled=True)
    async with AsyncOpenAI(base_url=f"{work.url}/v1", max_retries=work.retries) as client:
        agent = Agent(
            name="reviewer",
            instructions=SYSTEM,
            model=OpenAIChatCompletionsModel(MODEL, client),
            tools=[] if work.tool_s is None else [function_tool(tally.look)],
        )

        async def one(number: int) -> str:
            return str((await Runner.run(agent, work.prompt(number), run_config=quiet)).final_output)

        async def streamed(number: int) -> str:
            watch = Stopwatch(tally)
            result = Runner.run_streamed(agent, work.prompt(number), run_config=quiet)
            async for event in result.stream_events():
                if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                    watch.see(event.data.delta)
            return str(result.final_output)

        await gathered(work, tally, streamed if work.is_streamed else one)
