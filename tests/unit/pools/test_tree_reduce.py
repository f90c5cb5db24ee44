"""A tree of agents."""

import asyncio
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_pool import Answer, Asked, FakePool, cut, endpoints, failed

from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.pools.pool_protocol import OnResponse
from batch_agent.pools.response import Response
from batch_agent.pools.tree_reduce import tree_reduce

ITEM = "leaf {item}"
REDUCE = "L{level}: {responses}"


def merging(asked: Asked) -> str:
    """Leaves say their item; supervisors put what they read between brackets."""
    if asked.prompt.startswith("leaf "):
        return asked.prompt.removeprefix("leaf ")
    return "(" + asked.prompt.partition(": ")[2].replace("\n---\n", " ") + ")"


def failing(*prompts: str, instead: Response | str | None = None) -> Answer:
    """As `merging`, but these fail wherever they are asked."""
    return lambda asked: (failed() if instead is None else instead) if asked.prompt in prompts else merging(asked)


def supervised(pool: FakePool) -> list[Asked]:
    return [asked for asked in pool.asked if not asked.prompt.startswith("leaf")]


async def test_groups_of_leaves_are_merged_until_there_is_one_answer() -> None:
    pool = FakePool(endpoints(3), merging)
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcde"))
    assert response.success
    assert response.text == "(((a b) (c d)) e)"


async def test_items_go_to_the_agents_in_turn_and_supervisors_may_write_more() -> None:
    pool = FakePool(endpoints(2), merging)
    await tree_reduce(pool, ITEM, REDUCE, fanin=3, items=range(6))
    assert pool.asked == [
        *(Asked(item % 2, f"leaf {item}") for item in range(6)),
        Asked(0, "L1: 0\n---\n1\n---\n2", 1000),
        Asked(1, "L1: 3\n---\n4\n---\n5", 1000),
        Asked(0, "L2: (0 1 2)\n---\n(3 4 5)", 1000),
    ]


async def test_without_items_every_agent_is_asked_the_same() -> None:
    pool = FakePool(endpoints(4), lambda asked: f"n{asked.agent}" if asked.prompt == "leaf" else merging(asked))
    response = await tree_reduce(pool, "leaf", REDUCE, fanin=2)
    assert response.text == "((n0 n1) (n2 n3))"
    assert pool.asked[:4] == [Asked(agent, "leaf") for agent in range(4)]


async def test_by_default_fifty_are_merged_at_once() -> None:
    pool = FakePool(endpoints(1), merging)
    await tree_reduce(pool, ITEM, REDUCE, items=range(51))
    assert [asked.prompt.count("---") for asked in supervised(pool)] == [49, 1]


async def test_the_answer_of_a_single_leaf_is_the_answer() -> None:
    pool = FakePool(endpoints(2), merging)
    assert (await tree_reduce(pool, ITEM, REDUCE, items=["a"])).text == "a"
    assert supervised(pool) == []


async def test_values_that_look_like_placeholders_are_not_filled() -> None:
    pool = FakePool(endpoints(1), merging)
    await tree_reduce(pool, ITEM, "L{level}: {responses} {level}{x}", items=["{level}", "{responses}"])
    assert supervised(pool)[0].prompt == "L1: {level}\n---\n{responses} 1{x}"


async def test_a_supervisor_runs_when_its_group_is_complete() -> None:
    asked_first = asyncio.Event()

    async def hold(asked: Asked) -> None:
        if asked.prompt.startswith("L1: a"):
            asked_first.set()
        elif asked.prompt == "leaf d":
            await asked_first.wait()

    pool = FakePool(endpoints(2), merging, hold)
    assert (await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))).text == "((a b) (c d))"


async def test_without_items_a_supervisor_does_not_wait_for_other_groups_either() -> None:
    asked_first = asyncio.Event()

    async def hold(asked: Asked) -> None:
        if asked.prompt == "leaf" and asked.agent == 3:
            await asked_first.wait()
        elif asked.prompt != "leaf":
            asked_first.set()

    assert (await tree_reduce(FakePool(endpoints(4), merging, hold), "leaf", REDUCE, fanin=2)).success


async def test_leaves_without_an_answer_are_left_out_and_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    pool = FakePool(endpoints(2), lambda asked: " \n" if asked.prompt == "leaf d" else failing("leaf b")(asked))
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcdef"))
    assert response.text == "((a c) (e f))"
    assert [(each.index, each.error) for each in response.left_out] == [(1, "it broke"), (3, None)]
    assert caplog.messages == [
        "tree_reduce continues without some answers: 2 of 6 have no answer: "
        "leaf 1 (gpu1: it broke), leaf 3 (gpu1: the answer is empty)."
    ]


async def test_if_no_leaf_has_an_answer_the_response_says_so() -> None:
    pool = FakePool(endpoints(2), lambda _: failed("gone", ErrorKind.CONNECTION))
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcde"))
    assert supervised(pool) == []
    assert response.kind is ErrorKind.CONNECTION
    assert response.error == (
        "tree_reduce: 5 of 5 have no answer: leaf 0 (gpu0: gone), leaf 1 (gpu1: gone), leaf 2 (gpu0: gone), and 2 more."
    )


@pytest.mark.parametrize("bad", [failed(), cut("(a"), "", "  "], ids=["failed", "cut off", "empty", "blank"])
async def test_a_group_that_its_supervisor_cannot_merge_goes_to_another_agent(bad: Response | str) -> None:
    pool = FakePool(
        endpoints(3), lambda asked: bad if asked.agent == 0 and asked.prompt.startswith("L") else merging(asked)
    )
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert response.text == "((a b) (c d))"
    assert [asked.agent for asked in supervised(pool) if "a\n" in asked.prompt] == [0, 1]


async def test_a_single_agent_retries_a_failed_merge_once() -> None:
    tries = []

    def second_time(asked: Asked) -> str | Response:
        tries.append(asked)
        return failed() if len(tries) == 3 else merging(asked)

    assert (await tree_reduce(FakePool(endpoints(1), second_time), ITEM, REDUCE, items=["a", "b"])).text == "(a b)"


async def test_a_group_that_two_agents_cannot_merge_fails_the_reduce() -> None:
    pool = FakePool(endpoints(3), failing("L1: c\n---\nd"))
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert response.kind is ErrorKind.SERVER
    assert response.error == (
        "tree_reduce: 2 answers at level 1 could not be merged: gpu1: it broke; then gpu2: it broke."
    )
    assert not any(asked.prompt.startswith("L2") for asked in pool.asked)


@pytest.mark.parametrize(
    ("instead", "advice"),
    [
        (failed("too long.", ErrorKind.CONTEXT_OVERFLOW), r"too long\. Lower fanin"),
        (cut("half"), "Raise the pool's max_tokens_aggregation"),
    ],
)
async def test_a_reduce_that_fails_for_its_size_says_what_to_do(instead: Response, advice: str) -> None:
    pool = FakePool(endpoints(1), failing("L1: a\n---\nb", instead=instead))
    response = await tree_reduce(pool, ITEM, REDUCE, items=["a", "b"])
    assert response.error is not None
    assert re.search(advice, response.error)


async def test_a_failed_merge_cancels_requests_in_flight() -> None:
    called_off = []

    async def hold(asked: Asked) -> None:
        if asked.prompt == "leaf d":
            try:
                await asyncio.Event().wait()
            finally:
                called_off.append(asked.prompt)

    pool = FakePool(endpoints(2), failing("L1: a\n---\nb"), hold)
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert not response.success
    assert called_off == ["leaf d"]


async def test_a_failed_merge_starts_no_other_group() -> None:
    pool = FakePool(endpoints(2), lambda asked: failed() if asked.prompt.startswith("L") else merging(asked))
    await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert [asked.prompt for asked in supervised(pool)] == ["L1: a\n---\nb"] * 2


async def test_groups_that_fail_at_the_same_time_are_one_failure() -> None:
    both = asyncio.Barrier(2)

    async def hold(asked: Asked) -> None:
        if asked.prompt.startswith("L"):
            await both.wait()

    pool = FakePool(endpoints(2), lambda asked: failed() if asked.prompt.startswith("L") else merging(asked), hold)
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert len(supervised(pool)) == 4
    assert response.error is not None
    assert response.error.count("could not be merged") == 1


async def test_a_cancelled_reduce_cancels_its_leaves() -> None:
    begun = asyncio.Event()
    called_off = []

    async def hold(asked: Asked) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            called_off.append(asked.prompt)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(tree_reduce(FakePool(endpoints(2), merging, hold), ITEM, REDUCE, items=["a", "b"]))
        await begun.wait()
        task.cancel()
    assert task.cancelled()
    assert sorted(called_off) == ["leaf a", "leaf b"]


class Closed(FakePool):
    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        raise SpecError("The pool is not open.")


class ToldLate(FakePool):
    """What comes of the last prompt comes while the call is called off."""

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        assert on_response is not None
        first = await self.send_all(prompts[:-1], on_response=on_response)
        try:
            await asyncio.Event().wait()
        finally:
            on_response(Response(len(first), "late"))
        return first


async def test_a_response_after_a_failed_merge_changes_nothing() -> None:
    pool = ToldLate(endpoints(2), failing("L1: a\n---\nb"))
    response = await tree_reduce(pool, ITEM, REDUCE, fanin=2, items=list("abcd"))
    assert response.kind is ErrorKind.SERVER


async def test_exceptions_of_the_pool_are_propagated() -> None:
    with pytest.raises(SpecError, match="The pool is not open"):
        await tree_reduce(Closed(endpoints(1)), ITEM, REDUCE, items=["a", "b"])


@pytest.mark.parametrize("fanin", [1, 0, -3])
async def test_a_fanin_below_two_is_rejected(fanin: int) -> None:
    pool = FakePool(endpoints(1))
    with pytest.raises(SpecError, match=f"fanin must be >= 2; got {fanin}"):
        await tree_reduce(pool, ITEM, REDUCE, fanin=fanin, items=["a", "b"])
    assert pool.asked == []


async def test_invalid_arguments_are_rejected_before_anything_is_sent() -> None:
    pool = FakePool(endpoints(1))
    with pytest.raises(SpecError, match="tree_reduce needs at least one item"):
        await tree_reduce(pool, ITEM, REDUCE, items=[])
    with pytest.raises(SpecError, match="items must be a list; got a single string"):
        await tree_reduce(pool, ITEM, REDUCE, items="abc")
    with pytest.raises(SpecError, match=r"The prompt 'leaf' .* \{item\}"):
        await tree_reduce(pool, "leaf", REDUCE, items=["a"])
    with pytest.raises(SpecError, match=r"The reduce_prompt 'L' .* \{responses\}"):
        await tree_reduce(pool, ITEM, "L", items=["a"])
    with pytest.raises(SpecError, match="tree_reduce: the pool has no endpoints"):
        await tree_reduce(FakePool([]), "leaf", REDUCE)
    assert pool.asked == []


@settings(deadline=None)
@given(
    leaves=st.integers(1, 60),
    fanin=st.integers(2, 9),
    agents=st.integers(1, 5),
    bad=st.sets(st.integers(0, 59)),
)
def test_every_leaf_that_has_an_answer_is_in_the_result_once_and_in_order(
    leaves: int, fanin: int, agents: int, bad: set[int]
) -> None:
    pool = FakePool(endpoints(agents), failing(*(f"leaf {leaf}" for leaf in bad)))
    response = asyncio.run(tree_reduce(pool, ITEM, REDUCE, fanin=fanin, items=range(leaves)))
    assert [int(leaf) for leaf in re.findall(r"\d+", response.text)] == [n for n in range(leaves) if n not in bad]
    assert all(asked.prompt.count("---") < fanin for asked in pool.asked)
