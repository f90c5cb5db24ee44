"""Map and reduce in one call: results, and one answer made of all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.engine_harness import asked, now
from tests.support.flow_harness import entries, joining, prompts, saying

from batch_agent import BackendError, BatchAgent, ErrorKind, RunStopped, SpecError
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say


class Review(BaseModel):
    verdict: str


class Summary(BaseModel):
    total: int


def reviewing(request: Request) -> Answer:
    task = asked(request)
    if task.startswith("Sum"):
        return say(f'{{"total": {len(entries(task))}}}')
    return say("nonsense") if "bad" in task else say('{"verdict": "fine"}')


def run(backend: ScriptedBackend, inputs: Any, **options: Any) -> Any:
    options = {"task": "Review {path}", "output_schema": Review, "reduce": "Sum up {n} reviews", **options}
    return BatchAgent.run_with_reduce(inputs=inputs, backend=backend, **options)


def paths(*names: str) -> list[dict[str, str]]:
    return [{"path": name} for name in names]


async def test_the_results_come_with_a_typed_summary_of_all_of_them() -> None:
    backend = ScriptedBackend(reviewing)
    results, summary = await run(backend, paths("a", "b", "c"), reduce_schema=Summary)
    assert summary == Summary(total=3)
    assert [(result.index, result.input, result.output) for result in results] == [
        (number, {"path": name}, Review(verdict="fine")) for number, name in enumerate("abc")
    ]
    assert list(results.stages) == ["map", "reduce"]
    [prompt] = prompts(backend, beginning="Sum")
    assert prompt.startswith("Sum up 3 reviews\n\nResults:\n[\n{")
    assert entries(prompt)[1] == {"status": "ok", "index": 1, "input": {"path": "b"}, "output": {"verdict": "fine"}}


async def test_failures_reach_the_reduce_as_errors() -> None:
    backend = ScriptedBackend(reviewing)
    results, summary = await run(backend, paths("a", "bad", "c"), reduce_schema=Summary, max_retries=0)
    assert [result.ok for result in results] == [True, False, True]
    assert summary == Summary(total=3)
    [prompt] = prompts(backend, beginning="Sum")
    error = results[1].error
    assert entries(prompt)[1] == {
        "status": "error",
        "index": 1,
        "input": {"path": "bad"},
        "error": {"kind": "invalid_output", "message": error.message},
    }


async def test_the_reduce_of_no_results_is_none_and_sends_no_request() -> None:
    backend = ScriptedBackend(reviewing)
    results, summary = await run(backend, [], reduce_schema=Summary)
    assert (list(results), summary) == ([], None)
    assert not backend.requests


async def test_one_result_is_reduced_too() -> None:
    results, summary = await run(ScriptedBackend(reviewing), paths("a"), reduce_schema=Summary)
    assert (len(results), summary) == (1, Summary(total=1))


async def test_a_run_in_which_every_agent_fails_is_still_reduced() -> None:
    backend = ScriptedBackend(reviewing)
    results, summary = await run(backend, paths("bad 1", "bad 2"), reduce_schema=Summary, max_retries=0)
    assert not any(result.ok for result in results)
    assert summary == Summary(total=2)
    assert results.stages["map"].failed == 2


async def test_results_are_inserted_where_the_reduce_task_says() -> None:
    backend = ScriptedBackend(reviewing)
    await run(backend, paths("a"), reduce='Sum up <<{results}>> as {{"total": 1}}, of {n}')
    [prompt] = prompts(backend, beginning="Sum")
    assert prompt.startswith('Sum up <<[\n{"status":"ok"')
    assert prompt.endswith('\n]>> as {"total": 1}, of 1')


@pytest.mark.parametrize("context_tokens", [None, 900])
async def test_a_reduce_that_fails_loses_no_result(context_tokens: int | None) -> None:
    def answer(request: Request) -> Answer:
        return say("nonsense" if asked(request).startswith("Sum") else "x" * 200)

    backend = ScriptedBackend(answer, seconds=1.0, inflight=4, context_tokens=context_tokens)
    with pytest.raises(RunStopped, match="The reduce failed") as stopped:
        await run(backend, paths(*"abcdefghijklmnop"), output_schema=None, reduce_schema=Summary, max_retries=0)
    assert stopped.value.kind is ErrorKind.INVALID_OUTPUT
    assert [result.input["path"] for result in stopped.value.results] == list("abcdefghijklmnop")
    assert all(result.ok for result in stopped.value.results)
    flow = stopped.value.flow
    assert flow is not None
    assert (len(flow.stages["map"].results), flow.stages["map"].failed) == (16, 0)
    assert flow.stages["reduce"].failed >= 1


async def test_results_before_a_backend_failure_keep_their_index() -> None:
    async def dying(request: Request) -> Answer:
        await asyncio.sleep(2.5 if asked(request) == "Review 0" else 1.0)
        return say(asked(request)) if now() < 2.4 else BackendError(ErrorKind.UNAVAILABLE, "Nobody is there.")

    backend = ScriptedBackend(dying, inflight=4)
    with pytest.raises(RunStopped, match="Nobody is there") as stopped:
        await run(backend, paths(*"0123456789"), output_schema=None, max_retries=1)
    assert [(result.index, result.text) for result in stopped.value.results] == [
        (number, f"Review {number}") for number in range(1, 7)
    ]


async def test_a_reduce_accepts_lazy_inputs() -> None:
    def one_by_one() -> Iterator[dict[str, str]]:
        yield from paths("a", "b", "c")

    async def over_time() -> AsyncIterator[dict[str, str]]:
        for path in paths("a", "b", "c"):
            await asyncio.sleep(5)
            yield path

    for inputs in (one_by_one(), over_time(), tuple(paths("a", "b", "c"))):
        results, summary = await run(ScriptedBackend(reviewing, seconds=1.0), inputs, reduce_schema=Summary)
        assert [result.input["path"] for result in results] == ["a", "b", "c"]
        assert summary == Summary(total=3)


async def test_equal_inputs_are_each_answered_and_each_reduced() -> None:
    backend = ScriptedBackend(reviewing)
    results, summary = await run(backend, paths(*["same"] * 5), reduce_schema=Summary)
    assert len({result.key for result in results}) == 5
    assert summary == Summary(total=5)


async def test_changing_the_input_list_during_the_run_does_not_change_the_reduce() -> None:
    inputs = paths("a", "b", "c")

    def answer(request: Request) -> Answer:
        inputs.append({"path": "late"})
        return reviewing(request)

    results, summary = await run(ScriptedBackend(answer, seconds=1.0, inflight=1), inputs, reduce_schema=Summary)
    assert (len(results), summary) == (3, Summary(total=3))


@pytest.mark.parametrize(
    ("schema", "said", "output"),
    [(None, "plain text", "plain text"), (bool, '{"answer": true}', True), (list[int], '{"answer": [1, 2]}', [1, 2])],
)
async def test_answers_of_any_type_reach_the_reduce(schema: Any, said: str, output: Any) -> None:
    backend = ScriptedBackend(saying({"Review": said, "Sum": said}))
    results, summary = await run(backend, paths("a"), output_schema=schema, reduce_schema=schema)
    assert (results[0].output, summary) == (output, output)
    [prompt] = prompts(backend, beginning="Sum")
    assert entries(prompt)[0]["output"] == output


async def test_workers_and_reduce_have_models_tools_and_options_of_their_own() -> None:
    backend = ScriptedBackend(joining)
    await BatchAgent.run_with_reduce(
        task="Review {path}",
        inputs=paths("a"),
        reduce="Join",
        model="small",
        reducer_model="large",
        reduce_options={"temperature": 0.5, "max_tokens": 77},
        backend=backend,
    )
    worker, reducer = backend.requests
    assert (worker.model, worker.sampling.temperature, worker.sampling.max_tokens) == ("small", None, None)
    assert (reducer.model, reducer.sampling.temperature, reducer.sampling.max_tokens) == ("large", 0.5, 77)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reduce": ""}, "task must be a non-empty string"),
        ({"reduce": "Sum up {m}"}, r"uses the field \{m\}.*they have: n, results"),
        ({"reduce": "Sum up {group}"}, r"uses the field \{group\}"),
        ({"reduce_options": {"max_inflight": 3}}, "max_inflight= applies to all stages"),
        ({"reduce_options": {"group_by": "path"}}, "'group_by' is not supported here"),
        ({"reduce_options": ["temperature"]}, "a dict"),
        ({"reduce_options": {"temperatur": 1}}, "Stage 'reduce': Unknown option 'temperatur'"),
        ({"task": "Review {file}"}, r"uses the field \{file\}"),
        ({"context_tokens": 200, "reduce": "Sum " * 200}, "leave no room for results"),
    ],
)
async def test_invalid_reduce_options_are_rejected_before_any_request(options: dict[str, Any], match: str) -> None:
    backend = ScriptedBackend(reviewing)
    with pytest.raises(SpecError, match=match):
        await run(backend, paths("a"), **options)
    assert not backend.requests


async def test_a_reduce_needs_a_task_and_inputs() -> None:
    with pytest.raises(SpecError, match="task= is missing"):
        await BatchAgent.run_with_reduce(reduce="Sum", inputs=[])  # type: ignore[call-overload]
    with pytest.raises(SpecError, match="inputs= is missing"):
        await BatchAgent.run_with_reduce(reduce="Sum", task="Review {path}")  # type: ignore[call-overload]
