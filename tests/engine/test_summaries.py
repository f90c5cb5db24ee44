"""Long results of summarizable tools are shortened by the model, once for all who share them."""

from typing import Any

import pytest
from tests.support.engine_harness import run
from tests.support.event_list import EventList

from batch_agent import BackendError, ErrorKind, Tool
from batch_agent.core.events import ToolsUsed
from batch_agent.core.messages import ToolResults, User
from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, call, say

LONG = "word " * 2_000


def long_tool(**options: Any) -> Tool:
    @Tool.define(effect="read", max_tokens=100, **options)
    async def look() -> str:
        return LONG

    return look


def backend(summary: Answer, **traits: Any) -> ScriptedBackend:
    def answer(request: Request) -> Answer:
        if request.prompt.system.startswith("You shorten texts"):
            return summary
        return call("look") if len(request.messages) == 1 else say("done")

    return ScriptedBackend(answer, **traits)


def summaries(served: ScriptedBackend) -> list[Request]:
    return [request for request in served.requests if request.prompt.system.startswith("You shorten texts")]


def told(served: ScriptedBackend) -> set[str]:
    last = [request.messages[-1] for request in served.requests]
    return {result.content for message in last if isinstance(message, ToolResults) for result in message.results}


async def test_one_summary_of_a_tool_result_serves_all_agents_and_its_tokens_are_counted() -> None:
    served, log = backend(say("It says word.", Usage(500, 0, 9))), EventList()
    results = await run(served, ["a", "b", "c"], tools=[Tool.summarizable(long_tool())], events=log)
    assert all(result.ok for result in results)
    assert len(summaries(served)) == 1
    assert told(served) == {f"[a summary of {len(LONG)} characters]\nIt says word."}
    [used] = [event for event in log.events if isinstance(event, ToolsUsed)]
    assert used.summaries == Usage(500, 0, 9)


async def test_without_summaries_a_long_tool_result_is_cut_with_a_note() -> None:
    served = backend(say("never asked"))
    await run(served, ["a"], tools=[long_tool()])
    assert not summaries(served)
    assert told(served) == {f"{LONG[:400]}\n[cut here: 400 of {len(LONG)} characters are shown]"}


async def test_a_tool_result_beyond_the_window_is_summarized_in_chunks() -> None:
    served = backend(say("short"), context_tokens=1_100)
    await run(served, ["a"], tools=[long_tool(summarize=True)])
    asked = summaries(served)
    assert len(asked) == 5
    assert all(isinstance(request.messages[0], User) and len(request.messages[0].text) < 2_200 for request in asked)
    assert told(served) == {f"[a summary of {len(LONG)} characters]\n" + "\n".join(["short"] * 5)}


async def test_a_tool_result_that_the_model_does_not_shorten_is_cut() -> None:
    served = backend(BackendError(ErrorKind.BAD_REQUEST, "too long"))
    [result] = await run(served, ["a"], tools=[long_tool(summarize=True)])
    assert result.ok
    [content] = told(served)
    assert content.startswith("word word")
    assert content.endswith("no summary: too long]")


@pytest.mark.parametrize("length", [10, 400])
async def test_a_short_tool_result_is_not_summarized(length: int) -> None:
    @Tool.define(effect="read", max_tokens=100, summarize=True)
    async def look() -> str:
        return "x" * length

    served = backend(say("never asked"))
    await run(served, ["a"], tools=[look])
    assert told(served) == {"x" * length}
