"""A run again, from its checkpoint alone: for debugging, and for tests of prompts, schemas and tools."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..agent.output import output_type
from ..aio import Deadlines
from ..core.agent_config import Job
from ..core.errors import SpecError
from ..core.facts import Fact
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolSpec
from ..core.protocols import Traits
from ..core.results import AgentResult
from ..core.spec import BatchSpec
from ..data import gather_inputs
from ..engine.admission import AdmissionController
from ..engine.agent_loop import AgentLoop
from ..engine.engine import Engine, EngineConfig
from ..engine.inputs import InputSource, JobSource
from ..engine.recorded_backend import AgentRecording, RecordedBackend, RecordedToolbox, Recordings
from ..engine.slots import Slots
from ..engine.turn_runner import BackendTurnRunner
from ..observe.checkpoint_results import answer_schema, recorded_job, recorded_sampling, recorded_tools
from ..plan.compile import Plan, compile_plan
from ..plan.field_checks import settled_by
from ..plan.layout import as_they_come
from ..plan.template import template_of
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.health import Health
from ..store.memory import NoStore
from ..store.reader import CheckpointReader
from ..tools import ToolProvider, as_tool

_INFLIGHT = 64
_OF_OTHERS = ("backend", "checkpoint_dir", "on_result", "out")


@dataclass(frozen=True, slots=True)
class _Story:
    """An agent as it was, and what it was told."""

    job: Job
    recording: AgentRecording


async def replay(folder: str | Path, agent: str | int | None = None, **options: Any) -> list[AgentResult]:
    """Runs a checkpoint's agents again, or one of them (its index, or the beginning of its key), in the order of their
    index: no server is asked and no tool is called. Options are those of `BatchAgent.run`; what is left out is as it
    was recorded, but for max_retries. The n-th turn of the agent at an index is answered as it was, also if the prompt,
    the schema or the inputs are others now; results bear the recorded keys. An agent that comes to a turn or a call
    that was not recorded fails, and says so.

    Inputs are recorded as JSON: where a task formats a date or the like, give `inputs=` as they were.
    Raises StoreError for what is no checkpoint, and SpecError for options that make no sense."""
    _check(agent, options)
    with CheckpointReader(Path(folder)) as reader:
        recorded = reader.plan()
        stories = [_Story(recorded_job(key, facts), AgentRecording.of(facts)) for key, facts in _chosen(reader, agent)]
    spec = BatchSpec.of(**_completed(options, recorded, stories))
    specs = _specs(spec, recorded)
    traits = Traits("recording", recorded["model"], True, True, True, _INFLIGHT, fixed_inflight=True)
    inputs = JobSource(await gather_inputs(spec.inputs))
    first = await inputs.peek()
    layout = as_they_come(settled_by(template_of(spec.task, first), inputs.known))
    plan = compile_plan(spec, layout, specs, output_type(spec.output_schema), traits)
    places = {story.job.index: story for story in stories} if "inputs" in options else dict(enumerate(stories))
    tape = Recordings()
    source = InputSource(inputs, _jobs(plan, tape, places))
    return await _run(spec, source, plan, RecordedBackend(tape, traits), RecordedToolbox(tape, specs), tape)


def _check(agent: str | int | None, options: Mapping[str, Any]) -> None:
    for name in _OF_OTHERS:
        if name in options:
            raise SpecError(f"{name}= makes no sense in a replay, which asks nobody and keeps nothing: leave it out.")
    if agent is not None and "inputs" in options:
        raise SpecError("Give either agent= or inputs=: an agent is replayed with the input that it had.")


def _chosen(reader: CheckpointReader, agent: str | int | None) -> list[tuple[str, Sequence[Fact]]]:
    if agent is not None:
        key = reader.find(str(agent)).key
        return [(key, reader.facts(key))]
    return [(known.key, facts) for known, facts in reader.histories()]


def _completed(options: dict[str, Any], plan: Mapping[str, Any], stories: list[_Story]) -> dict[str, Any]:
    """The options with what the recorded run had. A group that is given whole stays as it is."""
    had: dict[str, Any] = {
        "task": plan["question"]["task"],
        "inputs": [story.job.input for story in stories],
        "output_schema": answer_schema(plan),
    }
    if "limits" not in options:
        had["max_turns"] = plan["max_turns"]
    if "prefix" not in options:
        had["tool_mode"] = plan["tool mode"]
    if "sampling" not in options:
        sampling = recorded_sampling(plan)
        had |= {name: getattr(sampling, name) for name in plan["sampling"]}
    return {**had, **options}


def _specs(spec: BatchSpec, plan: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools as the model would see them. Those of a server that would have to be opened are the recorded ones."""
    if not spec.tools or any(isinstance(tool, ToolProvider) for tool in spec.tools):
        return recorded_tools(plan)
    return tuple(as_tool(tool).spec for tool in spec.tools)


def _jobs(plan: Plan, tape: Recordings, stories: Mapping[int, _Story]) -> Callable[[int, Any], Job]:
    """Makes the job at a place, with the recording that belongs there."""

    def job(place: int, value: Any) -> Job:
        story = stories.get(place)
        if story is None:
            return plan.job(place, value)
        made = replace(plan.job(story.job.index, value), key=story.job.key)
        tape.cue(made.key, story.recording)
        return made

    return job


async def _run(
    spec: BatchSpec, source: InputSource, plan: Plan, backend: RecordedBackend, tools: RecordedToolbox, tape: Recordings
) -> list[AgentResult]:
    store, gate = NoStore(), AdmissionController(Slots(InflightLimit(_INFLIGHT, fixed=True)))
    asking = BackendTurnRunner(backend, gate, Health(patience=0.0), Deadlines(None), spec.retry)
    loop = AgentLoop(plan.rules, asking, tools, store, Deadlines(None), compacted=tape.compaction)
    results: list[AgentResult] = []

    async def deliver(result: AgentResult) -> None:
        results.append(result)

    await Engine(EngineConfig(source, loop, store, gate, deliver, _INFLIGHT)).run()
    return sorted(results, key=lambda result: result.index)
