"""Inputs asked in the order that the prefix cache likes: whatever it is, each is asked once, and nothing changes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.engine_harness import asked
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Fields, PlanMismatch, SpecError, Tool
from batch_agent.core.events import PrefixReported
from batch_agent.core.messages import User
from batch_agent.core.requests import Request, Usage
from batch_agent.data.results import Results
from batch_agent.store.memory_store import MemoryStore
from batch_agent.testing import Answer, ScriptedBackend, call, run_virtual, say

MANUAL = "Read the manual first. " * 20
TASK = "About {a}: {b} {manual}"
FREE = Fields("Do it.", "b", "a", "manual")
both = pytest.mark.parametrize("task", [TASK, FREE], ids=["text", "fields"])


def row(a: Any, b: Any, manual: Any = MANUAL) -> dict[str, Any]:
    return {"a": f"{a}", "b": f"{b}", "manual": manual}


def echo(request: Request) -> Answer:
    return say(asked(request))


async def run(task: str | Fields, inputs: Any, backend: ScriptedBackend | None = None, **options: Any) -> Results:
    """Without timeouts: while a thread reads a checkpoint virtual time jumps on."""
    options = {"timeout_per_agent": None, "timeout_per_turn": None, **options}
    results: Results = await BatchAgent.run(
        task=task, inputs=inputs, backend=backend or ScriptedBackend(echo), **options
    )
    return results


ROWS = [row(at % 3, at) for at in range(9)]


@both
async def test_results_are_in_input_order_whatever_the_layout(task: str | Fields) -> None:
    backend = ScriptedBackend(echo)
    results = await run(task, ROWS, backend, max_inflight=1)
    assert [result.index for result in results] == list(range(9))
    assert [result.input for result in results] == ROWS
    for result in results:
        assert f"{result.input['a']}" in result.text
        assert f"{result.input['b']}" in result.text
        assert result.text.count(MANUAL) == 1
    order = [result.text for result in results]
    assert [order.index(asked(request)) for request in backend.requests] == [0, 3, 6, 1, 4, 7, 2, 5, 8]


@both
@pytest.mark.parametrize("hoist", [True, False])
@pytest.mark.parametrize("reorder", [True, False])
async def test_keys_do_not_depend_on_the_layout(task: str | Fields, hoist: bool, reorder: bool, tmp_path: Path) -> None:
    first = await run(task, ROWS, checkpoint_dir=tmp_path)
    backend = ScriptedBackend(echo)
    again = await run(task, ROWS, backend, checkpoint_dir=tmp_path, hoist=hoist, reorder=reorder)
    assert backend.requests == []
    assert [result.key for result in again] == [result.key for result in first]
    assert [result.text for result in again] == [result.text for result in first]


class Model(BaseModel):
    a: str
    b: Any = ""
    manual: str = MANUAL


kinds = st.sampled_from(["dict", "model", "bad", "missing"])
some_rows = st.lists(
    st.tuples(kinds, st.sampled_from("xy"), st.integers(0, 2), st.sampled_from([MANUAL, "."])), max_size=9
)


def made(kind: str, a: str, b: int, manual: str) -> Any:
    match kind:
        case "dict":
            return {"a": a, "b": b, "manual": manual}
        case "model":
            return Model(a=a, b=b, manual=manual)
        case "bad":
            return 17
        case _:
            return {"a": a}


@both
@given(some_rows, st.booleans(), st.booleans(), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_every_input_is_sent_once_in_any_layout(
    task: str | Fields, rows: list[Any], hoist: bool, reorder: bool, max_inflight: int
) -> None:
    inputs = [row("x", 0), *(made(*each) for each in rows)]

    async def main() -> None:
        backend = ScriptedBackend(echo)
        results = await run(task, inputs, backend, hoist=hoist, reorder=reorder, max_inflight=max_inflight)
        assert [result.input for result in results] == inputs
        assert len({result.key for result in results}) == len(inputs)
        wanted = [each for each in inputs if isinstance(each, Model) or (isinstance(each, dict) and "b" in each)]
        assert [result.ok for result in results] == [each in wanted for each in inputs]
        assert len(backend.requests) == len(wanted)
        assert Counter(map(asked, backend.requests)) == Counter(result.text for result in results if result.ok)

    run_virtual(main())


parts = st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("01")), min_size=1, max_size=6)


@both
@given(parts, parts, st.sampled_from([MANUAL, "another"]), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_finished_inputs_are_not_sent_again_when_other_inputs_change(
    task: str | Fields,
    before: list[Any],
    after: list[Any],
    manual: str,
    reorder: bool,
) -> None:
    """Longer, shorter, in another order, with copies; and with a field that was the same for all and is not now."""
    first, then = [row(*each) for each in before], [row(*each) for each in after]
    then.append(row("x", "0", manual))

    async def main() -> None:
        store = MemoryStore()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("batch_agent.run.resource_opener._store", lambda spec: store)
            await run(task, first)
            backend = ScriptedBackend(echo)
            results = await run(task, then, backend, reorder=reorder)
        assert [result.input for result in results] == then
        known = Counter(map(str, first))
        new = Counter(map(str, then)) - known
        assert len(backend.requests) == new.total()

    run_virtual(main())


@both
async def test_a_checkpoint_finds_its_agents_in_another_layout(task: str | Fields, tmp_path: Path) -> None:
    first = await run(task, ROWS, checkpoint_dir=tmp_path)
    backend = ScriptedBackend(echo)
    longer = [row("new", 1, "no manual"), *reversed(ROWS), row("new", 2)]
    results = await run(task, longer, backend, checkpoint_dir=tmp_path)
    assert [result.input for result in results] == longer
    assert {result.key for result in first} < {result.key for result in results}
    assert len(backend.requests) == 2
    backend.requests.clear()
    shorter = await run(task, ROWS[4:5], backend, checkpoint_dir=tmp_path)
    assert [result.text for result in shorter] == [first[4].text]
    assert backend.requests == []


@both
async def test_an_interrupted_agent_resumes_in_another_layout(task: str | Fields, tmp_path: Path) -> None:
    looked: list[str] = []

    @Tool.define(effect="stateful")
    async def look(name: str) -> str:
        looked.append(name)
        return "found"

    def broken(request: Request) -> Answer:
        return call("look", name="x") if len(request.messages) == 1 else BackendError(ErrorKind.SERVER, "down")

    options: dict[str, Any] = {"tools": [look], "checkpoint_dir": tmp_path, "max_retries": 0}
    failed = await run(task, ROWS[:2], ScriptedBackend(broken), **options)
    assert [result.turns for result in failed] == [1, 1]
    backend = ScriptedBackend(lambda request: say("done"))
    results = await run(task, [row("new", 0, "other"), *reversed(ROWS[:2])], backend, **options)
    assert [result.text for result in results] == ["done"] * 3
    assert looked == ["x", "x"]
    assert sorted(len(request.messages) for request in backend.requests) == [1, 3, 3]


async def test_another_task_is_not_answered_from_the_checkpoint(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": ""}, {"a": "y", "b": ""}]
    await run(Fields("Do it.", "a"), rows, checkpoint_dir=tmp_path)
    for other in (Fields("Do it.", "a", "b"), Fields("Do it!", "a"), "Do it.\n{a}"):
        with pytest.raises(PlanMismatch):
            await run(other, rows, checkpoint_dir=tmp_path)


@pytest.mark.filterwarnings("ignore:The task names no")
async def test_tasks_with_all_fields_and_with_none_have_different_keys(tmp_path: Path) -> None:
    rows = [{"a": "x"}, {"a": "y"}]
    await run("Do it.\n", rows, checkpoint_dir=tmp_path)
    with pytest.raises(PlanMismatch):
        await run(Fields("Do it."), rows, checkpoint_dir=tmp_path)


async def test_other_fields_of_the_first_input_change_the_keys(tmp_path: Path) -> None:
    rows = [{"a": "x"}, {"a": "y", "b": "z"}]
    first = await run(Fields("Do it."), rows, checkpoint_dir=tmp_path)
    assert "z" not in first[1].text
    with pytest.raises(PlanMismatch):
        await run(Fields("Do it."), rows[1:], checkpoint_dir=tmp_path)


@pytest.mark.parametrize("task", [TASK, FREE, Fields("Do it.")], ids=["text", "fields", "all fields"])
async def test_a_replay_shows_all_fields(task: str | Fields, tmp_path: Path) -> None:
    await run(task, ROWS, checkpoint_dir=tmp_path)
    again: list[dict[str, Any]] = [{}, {"task": task}]
    for options in again:
        for result in await BatchAgent.replay(tmp_path, **options):
            said = result.transcript[0]
            assert isinstance(said, User)
            assert all(value in said.text for value in result.input.values())


@both
async def test_strict_prefix_rejects_a_run_before_any_request(task: str | Fields, tmp_path: Path) -> None:
    backend = ScriptedBackend(echo)
    options: dict[str, Any] = {"system_prompt": "Now: 2026-11-15T12:00:00Z.", "strict_prefix": True}
    with pytest.raises(SpecError, match="strict_prefix=True"):
        await run(task, ROWS, backend, checkpoint_dir=tmp_path, **options)
    assert backend.requests == []
    assert len(await run(task, ROWS, backend, system_prompt="Be brief.", strict_prefix=True)) == 9


async def test_lint_sends_no_request() -> None:
    rows = [row(at % 3, at) for at in range(9)]
    report = await BatchAgent.lint(task=TASK, inputs=rows, backend="vllm://127.0.0.1:1", system_prompt="Be brief.")
    assert (report.agents, report.groups, report.is_calibrated, report.measured) == (9, 3, False, None)
    assert report.diverges_at is not None
    assert report.diverges_at.startswith("the field {a}")
    assert report.findings == ()
    assert report.predicted is not None
    assert 0.8 < report.predicted < 1


async def test_lint_accepts_no_input_one_input_and_lazy_inputs() -> None:
    for task in (TASK, FREE, Fields("Do it.")):
        none = await BatchAgent.lint(task=task, inputs=[], backend="vllm://127.0.0.1:1")
        assert (none.agents, none.groups) == (0, 0)
        one = await BatchAgent.lint(task=task, inputs=ROWS[:1], backend="vllm://127.0.0.1:1")
        assert (one.agents, one.predicted) == (1, 0)
        lazy = await BatchAgent.lint(task=task, inputs=iter(ROWS), backend="vllm://127.0.0.1:1")
        assert (lazy.agents, lazy.predicted) == (None, None)


async def test_lint_reports_findings_where_a_strict_run_would_be_rejected() -> None:
    options: dict[str, Any] = {"system_prompt": "Now: 2026-11-15T12:00:00Z.", "strict_prefix": True}
    backend = ScriptedBackend(echo)
    plain = await BatchAgent.lint(task=TASK, inputs=ROWS, backend=backend, **options)
    assert [finding.kind for finding in plain.findings] == ["timestamp"]
    exact = await BatchAgent.lint(task=TASK, inputs=ROWS, backend=backend, exact=True, **options)
    assert exact.findings == plain.findings


async def test_prefix_sharing_is_reported_before_and_after_the_run() -> None:
    log = EventList()
    backend = ScriptedBackend(lambda request: say("done", Usage(100, 60, 1)))
    async with BatchAgent.stream(task=TASK, inputs=ROWS, backend=backend, events=log) as stream:
        async for _ in stream:
            pass
    told = [event.prefix for event in log.events if isinstance(event, PrefixReported)]
    assert [report.measured for report in told] == [None, 0.6]
    assert stream.prefix == told[1]


@both
async def test_the_cache_hit_rate_of_a_resumed_run_is_not_measured(task: str | Fields, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda request: say("done", Usage(100, 60, 1)))
    first = await run(task, ROWS, backend, checkpoint_dir=tmp_path)
    again = await run(task, ROWS, backend, checkpoint_dir=tmp_path)
    assert first.prefix is not None
    assert again.prefix is not None
    assert (first.prefix.measured, again.prefix.measured) == (0.6, None)


@pytest.mark.parametrize("reorder", [True, False])
async def test_inputs_appended_to_the_list_during_the_run_are_processed(reorder: bool) -> None:
    """One at a time, so that the last of the first three is not taken before there are more."""
    inputs: list[Any] = ["a", "a", "b"]

    def more(result: AgentResult) -> None:
        if result.index < 3:
            inputs.append("more")

    options: dict[str, Any] = {"max_inflight": 1, "max_dispatched": 1}
    results = await run("{it}", inputs, reorder=reorder, on_result=more, **options)
    assert [result.text for result in results] == ["a", "a", "b", "more", "more", "more"]


class Lying(Sequence[Any]):
    def __init__(self, rows: list[Any], length: int) -> None:
        self._rows = rows
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return self._rows[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


@both
@pytest.mark.parametrize("length", [0, 1, 4, 20, 300_000])
async def test_a_sequence_with_a_wrong_length_is_read_to_its_end(task: str | Fields, length: int) -> None:
    results = await run(task, Lying(ROWS, length))
    assert [result.input for result in results] == ROWS


@both
async def test_inputs_changed_during_the_run_are_rendered_with_their_current_values(task: str | Fields) -> None:
    rows = [row(at % 3, at) for at in range(9)]

    def answer(request: Request) -> Answer:
        for each in rows:
            each["manual"] = "gone"
        return say(asked(request))

    results = await run(task, rows, ScriptedBackend(answer), max_inflight=1)
    assert [result.index for result in results] == list(range(9))
    assert sum(MANUAL in result.text for result in results) < 9
    assert all(("gone" in result.text) != (MANUAL in result.text) for result in results)


async def test_the_prefix_warmup_request_has_the_shared_beginning_of_all_tasks() -> None:
    manual = MANUAL * 20
    rows = [row(at % 2, at, manual) for at in range(4)]
    backend = ScriptedBackend(echo, managed_cache=True)
    await run(TASK, rows, backend)
    warming, *agents = backend.requests
    assert warming.agent == ""
    lead = asked(warming)[: warming.messages[0].shared]  # type: ignore[union-attr]
    assert len(lead) > len(manual)
    assert len(agents) == 4
    assert all(asked(request).startswith(lead) for request in agents)
