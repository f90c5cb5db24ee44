"""LangGraph: an agent of LangChain's `create_agent`, and the batch that every graph has."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.peers.work import MODEL, SYSTEM, Stopwatch, Tally, Work, gathered


async def run(work: Work, tally: Tally) -> None:
    async with AsyncExitStack() as stack:
        saver = None
        if work.checkpoint is not None:
            Path(work.checkpoint).mkdir(parents=True)
            saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(f"{work.checkpoint}/facts.db"))
        agent = create_agent(
            ChatOpenAI(model=MODEL, base_url=f"{work.url}/v1", max_retries=work.retries),
            tools=[] if work.tool_s is None else [StructuredTool.from_function(coroutine=tally.look, name="look")],
            system_prompt=SYSTEM,
            checkpointer=saver,
        )
        await (_stream(agent, work, tally) if work.is_streamed else _batch(agent, work, tally))


async def _batch(agent: Any, work: Work, tally: Tally) -> None:
    numbers = range(work.agents)
    configs = [{"max_concurrency": work.inflight, "configurable": {"thread_id": str(number)}} for number in numbers]
    states = await agent.abatch([_asked(work, number) for number in numbers], config=configs, return_exceptions=True)
    for number, state in enumerate(states):
        if isinstance(state, BaseException):
            tally.fail(number, state)
        else:
            tally.tell(number, state["messages"][-1].text)


async def _stream(agent: Any, work: Work, tally: Tally) -> None:
    async def one(number: int) -> str:
        watch, pieces = Stopwatch(tally), list[str]()
        async for piece, _ in agent.astream(_asked(work, number), stream_mode="messages"):
            watch.see(piece.text)
            pieces.append(piece.text)
        return "".join(pieces)

    await gathered(work, tally, one)


def _asked(work: Work, number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": work.prompt(number)}]}
