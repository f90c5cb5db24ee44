"""What a caller gets can be sent to another process, and copied."""

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import batch_agent
from batch_agent import (
    AgentError,
    AgentResult,
    AgentsFailed,
    BackendError,
    BatchAgentError,
    BatchSpec,
    Changes,
    ErrorKind,
    FileChange,
    FlowResult,
    Item,
    PrefixReport,
    Results,
    RunStopped,
    Scheduling,
    StageReport,
    Usage,
)
from batch_agent.core import events
from batch_agent.core.messages import Assistant, ToolCall, User
from batch_agent.core.results import CallRecord, Timing, ToolUse

_GIVEN: dict[str, Any] = {
    "kind": ErrorKind.SERVER,
    "message": "It broke.",
    "results": Results(),
    "changes": "the model",
    "retry_after": 2.5,
    "status": 503,
    "retryable": True,
    "code": "odd",
}
"""Arguments of their constructors, by name. A new one needs a line here."""


def exceptions() -> list[type[BatchAgentError]]:
    """Every class of the package."""
    for module in pkgutil.walk_packages(batch_agent.__path__, "batch_agent."):
        if not module.name.endswith("__main__") and ".starter" not in module.name:
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name != "ray":  # an extra that only `make test-engines` installs
                    raise
    found: list[type[BatchAgentError]] = [BatchAgentError]
    for each in found:
        found += [kind for kind in each.__subclasses__() if kind.__module__.startswith("batch_agent.")]
    return list(dict.fromkeys(found))


def made(kind: type[BatchAgentError]) -> BatchAgentError:
    """With everything that its constructor takes."""
    if isinstance(kind.__init__, type(Exception.__init__)):  # none of ours
        return kind("It broke.")
    return kind(**{name: _GIVEN[name] for name in inspect.signature(kind).parameters})


def twins(value: Any) -> list[Any]:
    pickled = [pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return [*pickled, copy.copy(value), copy.deepcopy(value)]


@pytest.mark.parametrize("kind", exceptions(), ids=lambda kind: kind.__name__)
def test_every_exception_can_be_pickled_and_copied(kind: type[BatchAgentError]) -> None:
    error = made(kind)
    for twin in twins(error):
        assert type(twin) is kind
        assert str(twin) == str(error) != ""
        assert twin.__dict__ == error.__dict__


def test_the_list_of_exceptions_is_not_empty() -> None:
    assert {RunStopped, BackendError, AgentsFailed} <= set(exceptions())


def a_result() -> AgentResult:
    return AgentResult(
        3,
        "key",
        {"text": "ä"},
        {"answer": 42},
        "text",
        AgentError(ErrorKind.SERVER, "boom", retryable=True),
        "stop",
        Usage(1, 2, 3),
        2,
        (CallRecord("look", "{}", True, 0.1),),
        Timing(0.1, (None, 0.2), 0.3),
        (User("hi"), Assistant("", calls=(ToolCall("1", "look", "{}"),))),
        1,
        Changes((FileChange("a.py", "modified", 1, 2),), "diff"),
    )


def test_results_and_errors_that_hold_them_can_be_pickled_and_copied() -> None:
    results = Results([a_result()], Scheduling(inflight=3), PrefixReport(1, 2, 3, None))
    results.stages = {"map": StageReport("map", results=Results([a_result()]))}
    for twin in twins(results):
        assert type(twin) is Results
        assert list(twin) == list(results)
        assert twin.__dict__ == results.__dict__
    stopped = RunStopped(ErrorKind.INPUTS, "gone")
    stopped.results = list(results)
    stopped.flow = FlowResult((Item((0,), {"a": 1}),), results.stages)
    for twin in twins(stopped):
        assert (twin.kind, twin.results, twin.flow) == (stopped.kind, stopped.results, stopped.flow)
    with pytest.raises(AgentsFailed) as failed:
        results.raise_for_failures()
    assert [list(twin.results) for twin in twins(failed.value)] == [list(results)] * len(twins(failed.value))


def test_events_and_options_can_be_pickled_and_copied() -> None:
    told = [events.AgentFinished(a_result(), True), events.Notice("hello"), events.ToolsUsed((ToolUse("look"),))]
    asked = BatchSpec.of(task="{it}", inputs=["a"], backend="vllm://gpu:8000", max_turns=3, checkpoint_dir="kept")
    for value in (*told, asked):
        assert all(repr(twin) == repr(value) for twin in twins(value))


def _failing(kind: ErrorKind) -> None:
    raise BackendError(kind, "It broke.", status=503)


@pytest.mark.slow
def test_an_error_is_raised_unchanged_from_another_process() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        pytest.raises(BackendError, match="It broke") as raised,
    ):
        pool.submit(_failing, ErrorKind.SERVER).result()
    assert (raised.value.kind, raised.value.status) == (ErrorKind.SERVER, 503)
