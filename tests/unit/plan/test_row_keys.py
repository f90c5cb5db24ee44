"""`key="id"`: the field that identifies an input in results, in the checkpoint and on resume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.support.event_list import EventList

from batch_agent import BatchAgent, Flow, PlanMismatch, SpecError
from batch_agent.core.events import AgentFinished, AgentStarted
from batch_agent.core.requests import Request
from batch_agent.testing import ScriptedBackend, say

ROWS = [
    {"id": "007", "text": "a", "seen": 1},
    {"id": "v1.2@x/ü", "text": "b", "seen": 2},
    {"id": 12, "text": "c", "seen": 3},
]


def echo() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say(text_of(request)))


def text_of(request: Request) -> str:
    return request.messages[0].text  # type: ignore[union-attr]


async def run(inputs: Any, backend: ScriptedBackend, **options: Any) -> Any:
    return await BatchAgent.run(**{"task": "{text}", "inputs": inputs, "backend": backend, "key": "id", **options})


async def test_the_key_of_a_result_is_the_value_of_the_field(tmp_path: Path) -> None:
    seen: list[str] = []
    options = {"out": tmp_path / "out.csv", "on_result": lambda result: seen.append(result.key)}
    results = await run(ROWS, echo(), **options)
    assert [result.key for result in results] == ["007", "v1.2@x/ü", "12"]
    assert sorted(seen) == sorted(result.key for result in results)
    written = pd.read_csv(tmp_path / "out.csv", dtype={"key": str})
    assert sorted(written["key"]) == sorted(["007", "v1.2@x/ü", "12"])
    assert results.to_pandas()["key"].tolist() == ["007", "v1.2@x/ü", "12"]


async def test_events_name_the_key(tmp_path: Path) -> None:
    log = EventList()
    await run(ROWS[:1], echo(), events=log)
    [started] = [event for event in log.events if isinstance(event, AgentStarted)]
    [finished] = [event for event in log.events if isinstance(event, AgentFinished)]
    assert started.key == finished.result.key
    assert started.key.startswith("007@")


async def test_rows_may_be_reordered_and_added_between_runs(tmp_path: Path) -> None:
    backend = echo()
    await run(ROWS, backend, checkpoint_dir=tmp_path)
    changed = [{**row, "seen": 99} for row in reversed(ROWS)]  # a field that the task does not use
    results = await run([{"id": "new", "text": "d"}, *changed], backend, checkpoint_dir=tmp_path)
    assert [text_of(request) for request in backend.requests] == ["a", "b", "c", "d"]
    assert [(result.key, result.output, result.index) for result in results] == [
        ("new", "d", 0),
        ("12", "c", 1),
        ("v1.2@x/ü", "b", 2),
        ("007", "a", 3),
    ]


async def test_a_row_whose_prompt_changes_is_asked_again(tmp_path: Path) -> None:
    backend = echo()
    await run(ROWS, backend, checkpoint_dir=tmp_path)
    results = await run([{**ROWS[0], "text": "changed"}, *ROWS[1:]], backend, checkpoint_dir=tmp_path)
    assert [result.output for result in results] == ["changed", "b", "c"]
    assert len(backend.requests) == 4


async def test_another_key_is_another_question(tmp_path: Path) -> None:
    await run(ROWS, echo(), checkpoint_dir=tmp_path)
    with pytest.raises(PlanMismatch, match=r"key \(was 'id', is 'text'\)"):
        await run(ROWS, echo(), checkpoint_dir=tmp_path, key="text")
    with pytest.raises(PlanMismatch, match=r"key \(was 'id', is none\)"):
        await run(ROWS, echo(), checkpoint_dir=tmp_path, key=None)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (
            [{"id": 1, "text": ""}, {"id": "2", "text": ""}, {"id": "1", "text": ""}],
            r"one value .*: '1' \(inputs 0, 2\)",
        ),
        (
            [{"id": n // 2, "text": ""} for n in range(40)],
            r"20 values occur more than once: '0' \(inputs 0, 1\).*\.\.\.",
        ),
        ([{"ID": 1, "text": ""}], r"no such field; it has ID, text\. Did you mean 'ID'\? \(input 0\)"),
        ([{"id": "a", "text": ""}, {"text": ""}], r"no such field; it has text.* \(input 1\)"),
        ([{"id": None, "text": ""}], "must be a text or a number; got None"),
        ([{"id": "", "text": ""}], "must be a text or a number; got ''"),
        ([{"id": [1], "text": ""}], r"must be a text or a number; got \[1\]"),
        ([{"id": "x" * 201, "text": ""}], "at most 200 characters"),
        (["plain"], "needs inputs with fields, but one is a str"),
    ],
)
async def test_missing_and_repeated_keys_are_refused_by_name(inputs: list[Any], problem: str) -> None:
    backend = echo()
    with pytest.raises(SpecError, match=rf"^key='id'.*{problem}"):
        await run(inputs, backend)
    assert backend.requests == []


async def test_of_inputs_that_are_read_during_the_run_a_repeated_key_fails_alone() -> None:
    def rows() -> Iterator[Any]:
        yield {"id": 1, "text": "a"}
        yield {"id": 1, "text": "b"}
        yield {"text": "c"}

    results = await run(rows(), echo())
    assert [result.ok for result in results] == [True, False, False]
    assert "'1' occurs more than once" in str(results[1].error)
    assert "no such field" in str(results[2].error)


async def test_the_first_stage_of_a_flow_has_the_keys_of_the_rows(tmp_path: Path) -> None:
    flow = Flow(ROWS, backend=echo(), key="id", checkpoint_dir=tmp_path).map("first", "{text}").map("second", "{first}")
    outcome = await flow.run()
    assert [result.key for result in outcome.stages["first"].results] == ["007", "v1.2@x/ü", "12"]
    assert all(item.ok for item in outcome.items)


async def test_an_input_with_a_key_may_be_in_chunks() -> None:
    results = await run(
        [{"id": "a.b", "text": "word " * 3000}], echo(), oversized="chunk", context_tokens=2000, task="Sum up: {text}"
    )
    assert results[0].key == "a.b"
