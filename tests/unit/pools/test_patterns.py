"""Asking many agents, and one about what they said."""

import logging

import pytest
from tests.support.fake_pool import Asked, FakePool, cut, endpoints, failed

from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.pools.patterns import broadcast, broadcast_and_reduce, fan_out_fan_in, map_gather, scatter_gather
from batch_agent.pools.response import Response


def but(bad: dict[int, Response | str], *, on: str = "Q") -> FakePool:
    """Three agents that say their number, but for these when they are asked this."""
    return FakePool(endpoints(3), lambda asked: bad.get(asked.agent, f"n{asked.agent}") if asked.prompt == on else "R")


async def test_every_agent_gets_the_prompt_and_responses_are_in_the_order_of_the_agents() -> None:
    pool = FakePool(endpoints(3))
    responses = await broadcast(pool, "Q {item}")
    assert [response.text for response in responses] == ["0<Q {item}>", "1<Q {item}>", "2<Q {item}>"]
    assert pool.asked == [Asked(0, "Q {item}"), Asked(1, "Q {item}"), Asked(2, "Q {item}")]


async def test_a_broadcast_keeps_failures_in_order() -> None:
    responses = await broadcast(but({1: failed()}), "Q")
    assert [response.success for response in responses] == [True, False, True]


async def test_the_reducer_reads_all_answers_and_may_write_more() -> None:
    pool = but({})
    response = await broadcast_and_reduce(pool, "Q", "Sum up: {responses}!", reducer_agent_index=2)
    assert response.text == "R"
    assert pool.asked[3:] == [Asked(2, "Sum up: n0\n---\nn1\n---\nn2!", 1000)]


async def test_the_reducer_can_be_counted_from_the_end() -> None:
    pool = but({})
    await broadcast_and_reduce(pool, "Q", "{responses}", reducer_agent_index=-1)
    assert pool.asked[-1].agent == 2


@pytest.mark.parametrize("index", [3, -4])
async def test_a_reducer_outside_the_pool_is_rejected_before_anything_is_sent(index: int) -> None:
    pool = but({})
    with pytest.raises(SpecError, match=f"reducer_agent_index must be from 0 to 2; got {index}"):
        await broadcast_and_reduce(pool, "Q", "{responses}", reducer_agent_index=index)
    assert pool.asked == []


async def test_a_reducer_does_not_see_failures_and_they_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    pool = but({0: failed("gone"), 1: "  "})
    await broadcast_and_reduce(pool, "Q", "{responses}")
    assert pool.asked[-1].prompt == "n2"
    assert caplog.messages == [
        "broadcast_and_reduce continues without some answers: "
        "2 of 3 have no answer: agent 0 (gpu0: gone), agent 1 (gpu1: the answer is empty)."
    ]


async def test_an_answer_that_was_cut_off_is_not_reduced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    pool = but({0: cut("half of it")})
    await broadcast_and_reduce(pool, "Q", "{responses}")
    assert pool.asked[-1].prompt == "n1\n---\nn2"


async def test_the_reducer_is_not_called_without_answers(caplog: pytest.LogCaptureFixture) -> None:
    pool = but({0: "", 1: failed("gone", ErrorKind.CONNECTION), 2: failed("late")})
    response = await broadcast_and_reduce(pool, "Q", "{responses}")
    assert len(pool.asked) == 3
    assert response.kind is ErrorKind.CONNECTION
    assert response.error == (
        "broadcast_and_reduce: 3 of 3 have no answer: "
        "agent 0 (gpu0: the answer is empty), agent 1 (gpu1: gone), agent 2 (gpu2: late)."
    )
    assert caplog.messages == []


async def test_of_many_failures_three_are_named_and_the_others_counted() -> None:
    response = await broadcast_and_reduce(FakePool(endpoints(9), lambda _: failed("x")), "Q", "{responses}")
    assert response.error is not None
    assert response.error.endswith(
        "9 of 9 have no answer: agent 0 (gpu0: x), agent 1 (gpu1: x), agent 2 (gpu2: x), and 6 more."
    )


async def test_a_failure_of_the_reducer_is_the_response() -> None:
    pool = FakePool(endpoints(1), lambda asked: "a" if asked.prompt == "Q" else failed("too long"))
    assert (await broadcast_and_reduce(pool, "Q", "{responses}")).error == "too long"


async def test_answers_are_inserted_literally() -> None:
    pool = FakePool(endpoints(1), lambda asked: r"{responses} \1 {x}" if asked.prompt == "Q" else "R")
    await broadcast_and_reduce(pool, "Q", "{{responses}} {other} {responses}")
    assert pool.asked[-1].prompt == r"{{responses} \1 {x}} {other} {responses} \1 {x}"


async def test_workers_are_the_first_agents_and_the_first_collects() -> None:
    pool = but({})
    response = await fan_out_fan_in(pool, "Q", "All: {responses}", n_workers=2)
    assert response.text == "R"
    assert pool.asked == [Asked(0, "Q"), Asked(1, "Q"), Asked(0, "All: n0\n---\nn1", 1000)]


@pytest.mark.parametrize("n_workers", [None, 3, 50])
async def test_all_agents_work_unless_fewer_are_wanted(n_workers: int | None) -> None:
    pool = but({})
    await fan_out_fan_in(pool, "Q", "{responses}", n_workers)
    assert [asked.agent for asked in pool.asked] == [0, 1, 2, 0]


async def test_nothing_is_collected_if_all_workers_failed() -> None:
    pool = but({0: failed("gone")})
    response = await fan_out_fan_in(pool, "Q", "{responses}", n_workers=1)
    assert response.error == "fan_out_fan_in: 1 of 1 have no answer: agent 0 (gpu0: gone)."


async def test_at_least_one_worker_is_required() -> None:
    with pytest.raises(SpecError, match="n_workers must be >= 1; got 0"):
        await fan_out_fan_in(but({}), "Q", "{responses}", n_workers=0)


async def test_prompts_go_to_the_agents_in_turn_and_responses_come_in_their_order() -> None:
    responses = await scatter_gather(FakePool(endpoints(2)), ["a", "b", "c"])
    assert [response.text for response in responses] == ["0<a>", "1<b>", "0<c>"]
    assert [response.index for response in responses] == [0, 1, 2]


async def test_each_item_has_a_prompt() -> None:
    pool = FakePool(endpoints(2))
    await map_gather(pool, (item for item in ["x", 2, {"a": 1}]), "{item}: is {item} {good}?")
    assert [asked.prompt for asked in pool.asked] == [
        "x: is x {good}?",
        "2: is 2 {good}?",
        "{'a': 1}: is {'a': 1} {good}?",
    ]


async def test_an_item_that_looks_like_a_placeholder_is_not_filled() -> None:
    pool = FakePool(endpoints(1))
    await map_gather(pool, ["{item}", "{item"], "{item}}")
    assert [asked.prompt for asked in pool.asked] == ["{item}}", "{item}"]


async def test_no_prompts_have_no_responses() -> None:
    pool = FakePool(endpoints(1))
    assert await scatter_gather(pool, []) == []
    assert await map_gather(pool, [], "{item}") == []
    assert pool.asked == []


async def test_a_single_string_is_rejected_as_a_list() -> None:
    with pytest.raises(SpecError, match="prompts must be a list; got a single string, 'hello'"):
        await scatter_gather(FakePool(endpoints(1)), "hello")
    with pytest.raises(SpecError, match="items must be a list; got a single string"):
        await map_gather(FakePool(endpoints(1)), "hello", "{item}")


async def test_a_template_without_its_placeholder_is_rejected_before_anything_is_sent() -> None:
    pool = FakePool(endpoints(1))
    with pytest.raises(SpecError, match=r"The prompt_template 'Do \{it\}' has no placeholder \{item\}"):
        await map_gather(pool, ["a"], "Do {it}")
    with pytest.raises(SpecError, match=r"reduce_prompt .* \{responses\}"):
        await broadcast_and_reduce(pool, "Q", "Sum up")
    with pytest.raises(SpecError, match=r"collect_prompt .* \{responses\}"):
        await fan_out_fan_in(pool, "Q", "Sum up")
    assert pool.asked == []


async def test_an_empty_pool_is_rejected() -> None:
    nobody = FakePool([])
    with pytest.raises(SpecError, match="broadcast: the pool has no endpoints"):
        await broadcast(nobody, "Q")
    with pytest.raises(SpecError, match="broadcast_and_reduce: the pool has no endpoints"):
        await broadcast_and_reduce(nobody, "Q", "{responses}")
    with pytest.raises(SpecError, match="fan_out_fan_in: the pool has no endpoints"):
        await fan_out_fan_in(nobody, "Q", "{responses}")
    with pytest.raises(SpecError, match="scatter_gather: the pool has no endpoints"):
        await scatter_gather(nobody, ["a"])
    with pytest.raises(SpecError, match="the pool has no endpoints"):
        await map_gather(nobody, ["a"], "{item}")
