"""Headings and ranks of references, and who asked for them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.unit.tools.test_sharing import a_call, using

from batch_agent import SpecError, Tool, ToolContext
from batch_agent.core.facts import Returned
from batch_agent.core.messages import Reference, ToolResult
from batch_agent.tools import ToolExecutor, as_tool
from batch_agent.tools.agent_tools import AgentToolSession
from batch_agent.tools.reference_order import ReferenceOrder


class Range(BaseModel):
    first: int
    last: int = 9


@Tool.define(effect="read", placement="first")
async def read(title: str, pages: Range | None = None, limit: int = 100) -> str:
    """Reads a paper."""
    return title * limit


def heading(text: str, order: ReferenceOrder | None = None) -> str | None:
    return (order or ReferenceOrder()).on_call(read, text, frozenset())


async def test_calls_with_equal_arguments_have_one_heading_however_the_model_writes_them() -> None:
    plain = heading('{"title":"BERT"}')
    assert plain == 'read(title="BERT")'
    assert heading('{ "title": "BERT" }') == plain
    assert heading('{"limit":100,"title":"BERT"}') == plain
    assert heading('{"limit":5,"title":"BERT"}') == 'read(limit=5, title="BERT")'
    assert heading('{"title":"a","pages":{"first":1}}') == heading('{"pages":{"last":9,"first":1},"title":"a"}')


async def test_a_long_heading_is_cut_and_stays_unique() -> None:
    one, other = (heading(f'{{"title":"{"x" * 1000}{end}"}}') for end in "ab")
    assert one is not None
    assert one != other
    assert len(one) < 350


async def test_arguments_that_cannot_be_read_have_no_heading() -> None:
    assert heading("{") is None
    assert heading('{"unknown":1}') is None


async def ask(session: AgentToolSession, title: str, tool: str = "read") -> Reference | None:
    [result] = await session.results([a_call(tool, {"title": title})])
    return result.reference


def session(executor: ToolExecutor, agent: str, placement: Any = "inline") -> AgentToolSession:
    return AgentToolSession(executor, agent, None, placement=placement)


async def test_ranks_are_the_order_in_which_the_run_first_asked() -> None:
    async with using(read) as executor:
        one, two = session(executor, "one"), session(executor, "two")
        found = [await ask(one, "B"), await ask(one, "A"), await ask(two, "A"), await ask(two, "C")]
    assert [each and each.rank for each in found] == [0, 1, 1, 2]


async def test_an_agent_counts_once_as_a_reader_however_often_it_asks() -> None:
    async with using(read) as executor:
        one = session(executor, "one")
        await ask(one, "A")
        again = await ask(one, "A")
        other = await ask(session(executor, "two"), "A")
    assert [each and each.readers for each in (again, other)] == [1, 2]


async def test_agents_that_wait_for_the_same_execution_count_as_readers() -> None:
    import asyncio

    @Tool.define(effect="read", placement="auto")
    async def slow(title: str) -> str:
        await asyncio.sleep(0.01)
        return title

    async with using(slow) as executor, asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(session(executor, f"{at}"), "A", "slow")) for at in range(5)]
    assert [task.result() and task.result().readers for task in asking] == [5] * 5  # type: ignore[union-attr]


async def test_readers_of_a_path_are_the_agents_whose_prompts_would_begin_with_it() -> None:
    async with using(read) as executor:
        for agent, titles in enumerate(("AB", "BA", "AC", "A")):
            one = session(executor, str(agent))
            for title in titles:
                await ask(one, title)
    path = ['read(title="A")', 'read(title="B")']
    assert executor.references.expected_readers(path[:1]) == 4
    assert executor.references.expected_readers(path) == 2
    assert executor.references.expected_readers(path[::-1]) == 1.5  # nobody, but others share at this depth


async def test_readers_are_expected_where_other_agents_share() -> None:
    async with using(read) as executor:
        for agent in range(8):
            await ask(session(executor, str(agent)), "AB"[agent % 2])
        order = executor.references
        assert order.expected_readers(['read(title="new")']) == 4
        assert order.expected_readers([]) == order.expected_readers(["deeper", "than", "known"]) == 1


async def test_what_each_agent_reads_alone_has_one_reader() -> None:
    async with using(read) as executor:
        for agent in range(8):
            one = session(executor, str(agent))
            await ask(one, f"first {agent}")
            await ask(one, f"second {agent}")
    assert executor.references.expected_readers(['read(title="first 3")']) == 1
    assert executor.references.expected_readers(['read(title="first 3")', 'read(title="second 3")']) == 1


async def test_the_placement_of_the_run_holds_for_tools_without_their_own_and_never_for_tools_with_effects() -> None:
    @Tool.define(effect="read", placement="inline")
    async def own(title: str) -> str:
        return title

    @Tool.define(effect="pure")
    async def plain(title: str) -> str:
        return title

    @Tool.define(effect="write")
    async def write(title: str) -> str:
        return title

    async with using(own, plain, write) as executor:
        one = session(executor, "one", "auto")
        placed = [await ask(one, "A", name) for name in ("own", "plain", "write")]
    assert [each and each.placement for each in placed] == [None, "auto", None]


async def test_ranks_of_an_earlier_process_are_kept() -> None:
    order = ReferenceOrder()
    made = ToolResult(a_call("read", {"title": "B"}), "...", reference=Reference('read(title="B")', 7, readers=3))
    order.recall([Returned((made,))])
    assert heading('{"title":"B"}', order) is not None
    assert heading('{"title":"A"}', order) is not None
    known, new = [await order.reference(f'read(title="{title}")', "first") for title in "BA"]
    assert (known.rank, known.readers) == (7, 4)
    assert new.rank == 8


@pytest.mark.parametrize("effect", ["write", "stateful"])
@pytest.mark.parametrize("placement", ["first", "auto"])
def test_a_tool_with_effects_cannot_be_placed_first(effect: Any, placement: Any) -> None:
    with pytest.raises(SpecError, match=rf"'look': placement='{placement}' is for results that several agents read"):
        Tool.define(name="look", effect=effect, placement=placement)(lambda key: key)


def test_a_tool_that_knows_its_agent_cannot_be_placed_first() -> None:
    async def look(key: str, context: ToolContext) -> str:
        return key

    with pytest.raises(SpecError, match="takes a ToolContext"):
        Tool.define(effect="read", placement="first")(look)


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(SpecError, match="placement must be one of inline, first, auto; got 'top'"):
        Tool.define(name="look", effect="read", placement="top")(lambda key: key)  # type: ignore[call-overload]


def test_built_in_tools_can_be_shared_first(tmp_path: Path) -> None:
    assert as_tool(Tool.read_file).is_shared
