"""Stages of agents, one after another."""

import pytest
from tests.support.fake_pool import Asked, FakePool, cut, endpoints, failed

from batch_agent import swarm
from batch_agent.core.errors import BackendError, ErrorKind, SpecError
from batch_agent.pools.aggregators import concat, majority_vote
from batch_agent.pools.pipeline import Stage, pipeline, run_pipeline
from batch_agent.pools.response import Response


def by_agent(**bad: Response | str) -> FakePool:
    """Three agents that echo, but for these: agent 0 is `a`, and so on."""
    return FakePool(endpoints(3), lambda asked: bad.get("abc"[asked.agent], f"{asked.prompt}{asked.agent}"))


async def test_the_output_of_a_stage_is_the_input_of_the_next() -> None:
    pool = by_agent()
    stages = [Stage("one", "1 {input}", 2), Stage("two", "2 {input} {x}", 1)]
    assert await run_pipeline(pool, stages, "in") == "2 1 in0\n1 in1 {x}0"
    assert pool.asked == [Asked(0, "1 in"), Asked(1, "1 in"), Asked(0, "2 1 in0\n1 in1 {x}")]


async def test_an_input_that_looks_like_a_placeholder_is_not_filled() -> None:
    pool = by_agent()
    await run_pipeline(pool, [Stage("one", "{input}{input}", 1)], "{input}")
    assert pool.asked[0].prompt == "{input}{input}"


async def test_a_first_input_of_any_type_is_written_out() -> None:
    pool = by_agent()
    await run_pipeline(pool, [Stage("one", "{input}", 1)], ["a", 1])
    assert pool.asked[0].prompt == "['a', 1]"


async def test_stages_share_the_first_agents_and_a_small_pool_is_used_up() -> None:
    pool = by_agent()
    await run_pipeline(pool, [Stage("one", "{input}", 2), Stage("two", "{input}", 50)], "")
    assert [asked.agent for asked in pool.asked] == [0, 1, 0, 1, 2]


async def test_stages_can_have_agents_of_their_own() -> None:
    pool = by_agent()
    await run_pipeline(pool, [Stage("one", "{input}", 2), Stage("two", "{input}", 2)], "", reuse_agents=False)
    assert [asked.agent for asked in pool.asked] == [0, 1, 2]


async def test_a_stage_without_agents_is_named_before_anything_is_sent() -> None:
    pool = by_agent()
    with pytest.raises(SpecError, match="No agent is left for stage 'two': the stages before it use all 3"):
        await run_pipeline(pool, [Stage("one", "{input}", 3), Stage("two", "{input}", 1)], "", reuse_agents=False)
    assert pool.asked == []


async def test_a_transform_receives_all_responses_and_may_return_anything() -> None:
    pool = by_agent(a="yes", b="no", c=failed())
    seen = []

    def vote(responses: list[Response]) -> tuple[str, float]:
        seen.extend(responses)
        return majority_vote(responses)

    assert await run_pipeline(pool, [Stage("one", "{input}", 3, vote)], "") == ("yes", 0.5)
    assert [response.success for response in seen] == [True, True, False]


async def test_a_filter_selects_the_responses_of_the_transform() -> None:
    pool = by_agent(a="1", b="22", c=cut("333"))
    keep = Stage("one", "{input}", 3, output_filter=lambda response: len(response.text) > 1)
    assert await run_pipeline(pool, [keep], "") == "22"
    keep = Stage("one", "{input}", 3, lambda all_: concat(all_, "+", include_failures=True), keep.output_filter)
    assert await run_pipeline(pool, [keep], "") == "22+333"


async def test_a_stage_continues_without_failed_agents_and_logs_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await run_pipeline(by_agent(a=failed(), b=" "), [Stage("one", "{input}", 3)], "in") == "in2"
    assert caplog.messages == [
        "Stage 'one' continues without some answers: "
        "2 of 3 have no answer: agent 0 (gpu0: it broke), agent 1 (gpu1: the answer is empty)."
    ]


async def test_a_stage_without_any_success_ends_the_pipeline() -> None:
    pool = by_agent(a=failed("gone", ErrorKind.CONNECTION))
    stages = [
        Stage("one", "{input}", 1, lambda _: "made up", lambda _: True),
        Stage("two", "{input}", 1),
    ]
    with pytest.raises(BackendError, match=r"Stage 'one': 1 of 1 have no answer: agent 0 \(gpu0: gone\)") as error:
        await run_pipeline(pool, stages, "")
    assert error.value.kind is ErrorKind.CONNECTION
    assert len(pool.asked) == 1


async def test_a_stage_of_empty_answers_ends_the_pipeline() -> None:
    with pytest.raises(BackendError, match="Stage 'one': 1 of 1 have no answer"):
        await run_pipeline(by_agent(a=""), [Stage("one", "{input}", 1)], "")


async def test_a_filter_that_removes_everything_ends_a_pipeline_without_a_transform() -> None:
    with pytest.raises(BackendError, match="Stage 'one': its output_filter removed all 3 responses"):
        await run_pipeline(by_agent(), [Stage("one", "{input}", 3, output_filter=lambda _: False)], "")
    assert await run_pipeline(by_agent(), [Stage("one", "{input}", 3, len, lambda _: False)], "") == 0


async def test_invalid_arguments_are_rejected_before_anything_is_sent() -> None:
    pool = by_agent()
    with pytest.raises(SpecError, match="run_pipeline needs at least one stage"):
        await run_pipeline(pool, [], "in")
    with pytest.raises(SpecError, match="Stage 'two': n_agents must be >= 1; got 0"):
        await run_pipeline(pool, [Stage("one", "{input}", 1), Stage("two", "{input}", 0)], "in")
    with pytest.raises(SpecError, match=r"The prompt_template of stage 'one' 'Do it' .* \{input\}"):
        await run_pipeline(pool, [Stage("one", "Do it", 1)], "in")
    with pytest.raises(SpecError, match="run_pipeline: the pool has no endpoints"):
        await run_pipeline(FakePool([]), [Stage("one", "{input}", 1)], "in")
    assert pool.asked == []


def test_pipelines_and_stages_have_the_names_of_aurora_swarm_too() -> None:
    assert swarm.Stage is Stage
    assert pipeline is run_pipeline
