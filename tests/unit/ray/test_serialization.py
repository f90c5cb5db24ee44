"""What goes to workers, and how their errors come back."""

import pickle
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BackendError, BatchSpec, ErrorKind, PlanMismatch, RunStopped, SpecError, StoreError
from batch_agent.core.errors import BatchAgentError, LeaseLost
from batch_agent.core.options import Rows
from batch_agent.core.options.flat_options import OPTION_GROUPS
from batch_agent.engine.result_stream import ResultStream
from batch_agent.ray import RayRun
from batch_agent.ray.serialization import RemoteError, deserialize_spec, serialize_spec, spec_for_workers
from batch_agent.run.setup import RunSetup
from batch_agent.testing import ScriptedBackend, say


def look_up(name: str) -> str:
    """Look a name up."""
    return name


def a_spec(**options: Any) -> BatchSpec:
    return BatchSpec.of(
        **{"task": "{it}", "inputs": ["a"], "backend": "http://10.0.0.1:8000", "cluster": "ray"} | options
    )


def test_a_worker_is_given_the_question_and_nothing_that_is_the_callers_own(tmp_path: Path) -> None:
    asked = a_spec(
        tools=[look_up],
        on_result=lambda result: None,
        out=tmp_path / "out.jsonl",
        checkpoint_dir=tmp_path,
        workers=4,
        lease=30.0,
        max_turns=3,
    )
    sent = deserialize_spec(serialize_spec(spec_for_workers(asked), pickle.dumps))
    assert (sent.inputs, sent.on_result, sent.out) == ([], None, None)
    assert (sent.distribution.cluster, sent.distribution.workers) == (None, None)
    assert (sent.task, sent.tools, sent.backend) == (asked.task, (look_up,), asked.backend)
    assert (sent.limits, sent.distribution.lease) == (asked.limits, 30.0)


def test_inputs_are_chosen_and_checked_by_the_submitter_alone() -> None:
    lock = threading.Lock()
    chosen = {"limit": 3, "sample": 2, "where": lambda row: lock.acquire(), "input_format": "csv"}
    read = {"key": "id", "encoding": "cp1252", "images": ["photo"]}
    score = lambda output, row: lock.acquire()  # noqa: E731
    asked = a_spec(inputs=[{"id": 1}], task="{id}", score=score, samples=2, strict_prefix=True, **read, **chosen)
    sent = deserialize_spec(serialize_spec(spec_for_workers(asked), pickle.dumps))
    assert sent.rows == Rows(key="id", encoding="cp1252", images=("photo",))
    assert (sent.evaluation.samples, sent.evaluation.score) == (2, ())
    assert not sent.prefix.strict_prefix


def test_workers_write_files_at_the_paths_of_the_caller_wherever_they_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = a_spec(checkpoint_dir="run", log_requests="logs/requests.jsonl", tool_cache_dir="cache")
    sent = spec_for_workers(asked)
    assert (sent.checkpoint_dir, sent.log_requests) == (tmp_path / "run", tmp_path / "logs" / "requests.jsonl")
    assert sent.tool_caching.tool_cache_dir == tmp_path / "cache"


def test_every_option_is_either_sent_to_workers_or_known_to_be_the_callers() -> None:
    """A new option fails here until somebody has decided what it is on another machine."""
    assert {each.name for each in fields(Rows)} == {
        "limit", "sample", "sample_seed", "where", "input_format", "encoding", "key", "images",
    }  # fmt: skip
    assert {each.name for each in fields(BatchSpec)} == {
        "task", "inputs", "tools", "output_schema", "model", "backend", "runtime", "checkpoint_dir", "plan_changed",
        "lane", "on_result", "out", "log_requests", "fallback", "tokens", *OPTION_GROUPS,
    }  # fmt: skip


def test_a_server_where_workers_meet_is_named_to_them() -> None:
    sent = spec_for_workers(a_spec(store="redis://10.0.0.1:6379", run_id="mine"))
    assert (sent.distribution.store, sent.distribution.run_id) == ("redis://10.0.0.1:6379", "mine")


def test_several_addresses_are_as_good_as_one() -> None:
    assert spec_for_workers(a_spec(backend=["http://10.0.0.1:1", "http://10.0.0.1:2"])).backend == (
        "http://10.0.0.1:1",
        "http://10.0.0.1:2",
    )


def test_a_backend_that_is_open_here_is_refused() -> None:
    with pytest.raises(SpecError, match="pass its URL instead"):
        spec_for_workers(a_spec(backend=ScriptedBackend(lambda request: say("x"))))


class Holding:
    """A tool with something inside that cannot be copied."""

    __name__ = "holding"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, name: str) -> str:
        """Look a name up."""
        return name


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(SpecError, match=r"Tool 'holding' cannot be sent to other processes .*lock"):
        serialize_spec(spec_for_workers(a_spec(tools=[look_up, Holding()])), pickle.dumps)


def test_what_a_node_cannot_load_is_said_with_what_to_do() -> None:
    data = pickle.dumps(look_up).replace(__name__.encode(), b"x" * len(__name__))
    with pytest.raises(SpecError, match=r"No module named 'xxx.*runtime_env"):
        deserialize_spec(data)


@pytest.mark.parametrize(
    "error",
    [
        BackendError(ErrorKind.UNAVAILABLE, "nobody is there", status=503),
        RunStopped(ErrorKind.AUTH, "wrong key"),
        PlanMismatch("another task"),
        SpecError("no such model"),
        StoreError("the disk is full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_worker_is_the_same_in_the_caller(error: BatchAgentError) -> None:
    told = pickle.loads(pickle.dumps(RemoteError.of(error))).error()
    assert (type(told), str(told)) == (type(error), str(error))
    assert getattr(told, "kind", None) == getattr(error, "kind", None)


def test_what_the_caller_could_not_react_to_stops_the_run() -> None:
    assert isinstance(RemoteError.of(LeaseLost("another has it")).error(), StoreError)
    assert isinstance(RemoteError.of(BatchAgentError("something else")).error(), RunStopped)


async def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"cluster='ray' needs a package: pip install 'batch-agent\[ray\]'"):
        async with ResultStream(RayRun(RunSetup.validate(a_spec(), None)).drive) as results:
            await anext(results)


def test_ray_is_imported_only_on_request() -> None:
    command = "import sys, batch_agent.ray, batch_agent.api; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0
