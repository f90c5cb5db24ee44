"""Right and wrong calls of the public API, for mypy and pyright; nothing here is run.

A wrong call is marked with the error that each of them must report: `type: ignore[...]` is mypy's mark,
`pyright: ignore[...]` pyright's. Both refuse a mark that hides nothing, and `test_calls.py` runs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, assert_type

from pydantic import BaseModel

from batch_agent import AgentResult, BatchAgent, BatchSpec, Flow, Limits, Results, RunOptions, StageOptions


class Review(BaseModel):
    verdict: str


class Summary(BaseModel):
    text: str


@dataclass
class Point:
    x: int


class Row(TypedDict):
    name: str


def look(name: str) -> str:
    """Looks a name up."""
    return name


async def output_schema_is_the_type_of_the_answers() -> None:
    reviews = await BatchAgent.run(task="{it}", inputs=["a"], output_schema=Review)
    assert_type(reviews, Results[Review])
    assert_type(reviews[0], AgentResult[Review])
    assert_type(reviews.failed, Results[Review])
    assert_type(reviews.raise_for_failures(), Results[Review])
    assert_type(reviews.outputs, list[Review | None])
    print(*(result.output.verdict if result.ok else result.error for result in reviews))
    reviews[0].output.verdikt = "no"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    assert_type(BatchAgent.run_sync(task="{it}", inputs=["a"], output_schema=Point), Results[Point])
    assert_type(BatchAgent.run_sync(task="{it}", inputs=["a"], output_schema=Row), Results[Row])
    assert_type(BatchAgent.run_sync(task="{it}", inputs=["a"], output_schema=list[str]), Results[list[str]])
    assert_type(BatchAgent.run_sync(task="{it}", inputs=["a"], output_schema=bool), Results[bool])


async def answers_without_a_schema_are_text() -> None:
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"]), Results[str])
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"], output_schema=None), Results[str])
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"], output_schema=str), Results[str])


async def answers_of_other_schemas_are_of_any_type() -> None:
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"], output_schema={"type": "integer"}), Results[Any])
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"], output_schema=Literal["yes", "no"]), Results[Any])
    assert_type(await BatchAgent.run(task="{it}", inputs=["a"], output_schema=int | None), Results[Any])
    assert_type(await BatchAgent.run(BatchSpec(task="{it}", inputs=["a"], output_schema=Review)), Results[Any])


async def a_stream_yields_results_of_that_type() -> None:
    async for result in BatchAgent.stream(task="{it}", inputs=["a"], output_schema=Review, progress=False):
        assert_type(result, AgentResult[Review])
    async with BatchAgent.stream(task="{it}", inputs=["a"]) as stream:
        async for answer in stream:
            assert_type(answer, AgentResult[str])
        assert_type(stream.unread(), list[AgentResult[str]])


async def a_reduce_has_a_type_of_its_own() -> None:
    both = await BatchAgent.run_with_reduce(
        task="{it}", inputs=["a"], reduce="Sum up {n}", output_schema=Review, reduce_schema=Summary
    )
    assert_type(both, tuple[Results[Review], Summary | None])
    text = await BatchAgent.run_with_reduce(task="{it}", inputs=["a"], reduce="Sum up {n}")
    assert_type(text, tuple[Results[str], str | None])
    planned = await BatchAgent.run_with_map_reduce(
        plan_prompt="Plan", plan_output_schema=list[str], task="{item}", reduce="Sum up {n}", reduce_schema=Summary
    )
    assert_type(planned, tuple[Results[str], Summary | None])
    await BatchAgent.run_with_reduce(task="{it}", inputs=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def options_are_checked() -> None:
    await BatchAgent.run(task="{it}", inputs=["a"], temperature=0.2, stop=["\n"], tools=[look], max_turns=4)
    await BatchAgent.run(task="{it}", inputs=["a"], checkpoint_dir="run", out=Path("out.jsonl"), limits=Limits())
    await BatchAgent.run(task="{it}", inputs=["a"], prices={"m": (1, 0.5, 2)}, backend=["http://a", "http://b"])

    await BatchAgent.run(task="{it}", inputz=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await BatchAgent.run(task="{it}", inputs=["a"], temprature=0.2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await BatchAgent.run(task="{it}", inputs=["a"], temperature="hot")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.run(task="{it}", inputs=["a"], max_turns=1.5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.run(task="{it}", inputs=["a"], tool_mode="nativ")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.run(task="{it}", inputs=["a"], stop="\n")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.run(task="{it}", inputs=["a"], limits={"max_turns": 4})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.run(inputs=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    BatchAgent.run_sync(task="{it}", inputs=["a"], output_schema=Review, temperature="hot")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    BatchAgent.stream(task="{it}", inputs=["a"], model=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def other_calls_are_checked() -> None:
    await BatchAgent.plan(task="{it}", inputs=["a"], canary=3, output_schema=Review)
    await BatchAgent.lint(task="{it}", inputs=["a"], exact=True)
    await BatchAgent.work(task="{it}", store="redis://127.0.0.1:6379/0")
    assert_type(await BatchAgent.replay("run", 3, max_turns=4), list[AgentResult])
    BatchSpec.of(task="{it}", inputs=["a"], max_turns=4, output_schema=Review)

    await BatchAgent.plan(task="{it}", inputs=["a"], canary="all")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await BatchAgent.lint(task="{it}", inputs=["a"], exakt=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await BatchAgent.replay("run", backend="local://")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    BatchSpec.of(task="{it}", inputs=["a"], max_turn=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    BatchSpec.of(task="{it}", inputs=["a"], max_turns="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def flows_are_checked() -> None:
    flow = Flow(["a"], backend="local://", temperature=0.2).map("review", "{it}", output_schema=Review)
    await flow.reduce("report", "Sum up {n}", model="m").run(progress=False)

    Flow(["a"], temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    flow.map("again", "{it}", modle="m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def options_may_be_collected_first(anything: dict[str, Any]) -> None:
    options: RunOptions = {"task": "{it}", "inputs": ["a"], "temperature": 0.2}
    reviews: Results[Review] = await BatchAgent.run(output_schema=Review, **options)
    of_stage: StageOptions = {"temperature": 0.2}
    Flow(["a"], **of_stage)
    results: Results = await BatchAgent.run(**anything)
    print(results, reviews)
    wrong: StageOptions = {"temperature": "hot"}  # type: ignore[typeddict-item]  # pyright: ignore[reportAssignmentType]
    print(wrong)
