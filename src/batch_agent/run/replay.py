"""Replay of a run from its checkpoint: for debugging, and for tests of prompts, schemas and tools."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..agent.output import output_type
from ..aio import Deadlines
from ..core.agent_config import Job, sample_of
from ..core.errors import SpecError
from ..core.facts import Fact
from ..core.fast_dataclass import dataclass
from ..core.images import Image
from ..core.messages import ToolSpec
from ..core.protocols.backend import Traits
from ..core.results import AgentResult
from ..core.spec import BatchSpec
from ..data import read_inputs_async
from ..engine.admission import AdmissionController
from ..engine.agent_loop import AgentLoop
from ..engine.engine import Engine, EngineConfig
from ..engine.job_source import InputSource, JobSource
from ..engine.recorded_backend import AgentRecording, RecordedBackend, RecordedTools, Recordings
from ..engine.slots import Slots
from ..engine.turn_runner import BackendTurnRunner
from ..observe.checkpoint_results import answer_schema, recorded_job, recorded_sampling, recorded_tools
from ..plan.compile import Plan, compile_plan
from ..plan.field_checks import resolve_uncertain_fields
from ..plan.layout import default_layout
from ..plan.template import template_of
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.health import Health
from ..store.memory_store import NoStore
from ..store.reader import CheckpointReader
from ..tools import ToolProvider, as_tool

_INFLIGHT = 64
_UNSUPPORTED_OPTIONS = (
    "backend",
    "fallback",
    "checkpoint_dir",
    "on_result",
    "out",
    "samples",
    "models",
    "score",
    "evaluation",
)


@dataclass(frozen=True, slots=True)
class _RecordedAgent:
    """The job of a recorded agent, and its recording."""

    job: Job
    recording: AgentRecording


async def replay(folder: str | Path, agent: str | int | None = None, **options: Any) -> list[AgentResult]:
    """Runs the agents of a checkpoint again, or one of them (its index, or the beginning of its key), in the order of
    their index. No request is sent and no tool is called. Options are those of `BatchAgent.run`; missing ones are as
    recorded, except max_retries. The n-th turn of the agent at an index gets the recorded reply, even if the prompt,
    the schema or the inputs have changed; results have the recorded keys. An agent that reaches a turn or a call that
    was not recorded fails with an error that says so.

    Inputs are recorded as JSON: if a task formats a date or the like, pass the original `inputs=`.
    Raises StoreError if the folder is not a checkpoint, and SpecError for options that a replay does not support."""
    _check(agent, options)
    with CheckpointReader(Path(folder)) as reader:
        recorded = reader.plan()
        agents = [
            _RecordedAgent(recorded_job(key, facts), AgentRecording.of(facts))
            for key, facts in _select_agents(reader, agent)
        ]
    spec = BatchSpec.of(**_with_recorded_options(options, recorded, agents))
    specs = _specs(spec, recorded)
    traits = Traits("recording", recorded["model"], True, True, True, _INFLIGHT, fixed_inflight=True, images=True)
    inputs = JobSource(await read_inputs_async(spec.inputs, spec.rows))
    first = await inputs.peek()
    template = resolve_uncertain_fields(template_of(spec.task, first), inputs.known).with_images(spec.rows.images)
    plan = compile_plan(spec, default_layout(template), specs, output_type(spec.output_schema), traits)
    by_index = {agent.job.index: agent for agent in reversed(agents)}  # of several samples, the first
    by_position = by_index if "inputs" in options else dict(enumerate(agents))
    recordings = Recordings()
    source = InputSource(inputs, _jobs(plan, recordings, by_position))
    backend, tools = RecordedBackend(recordings, traits), RecordedTools(recordings, specs)
    return await _run(spec, source, plan, backend, tools, recordings)


def _check(agent: str | int | None, options: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED_OPTIONS:
        if name in options:
            raise SpecError(
                f"{name}= is not supported in a replay, which sends no requests and stores nothing. Remove it."
            )
    if agent is not None and "inputs" in options:
        raise SpecError("Pass either agent= or inputs=, not both: an agent is replayed with its recorded input.")


def _select_agents(reader: CheckpointReader, agent: str | int | None) -> list[tuple[str, Sequence[Fact]]]:
    if agent is not None:
        key = reader.find(str(agent)).key
        return [(key, reader.facts(key))]
    return [(known.key, facts) for known, facts in reader.histories()]


def _with_recorded_options(
    options: dict[str, Any], plan: Mapping[str, Any], agents: list[_RecordedAgent]
) -> dict[str, Any]:
    """The options, completed with those of the recorded run. A group of options that is passed stays as it is."""
    recorded: dict[str, Any] = {
        "task": plan["question"]["task"],
        "inputs": [_with_images(agent.job) for agent in agents],
        "output_schema": answer_schema(plan),
    }
    if "rows" not in options:
        recorded["images"] = plan["question"].get("images", ())
    if "limits" not in options:
        recorded["max_turns"] = plan["max_turns"]
    if "prefix" not in options:
        recorded["tool_mode"] = plan["tool mode"]
    if "sampling" not in options:
        sampling = recorded_sampling(plan)
        recorded |= {name: getattr(sampling, name) for name in plan["sampling"]}
    return {**recorded, **options}


def _with_images(job: Job) -> Any:
    """The recorded input, whose images are named by path, URL or digest: nothing is read."""
    return _restored(job.input) if job.images else job.input


def _restored(value: Any) -> Any:
    match value:
        case {"image": str(name)} if value.keys() <= {"image", "max_side", "page"}:
            return Image(name, max_side=value.get("max_side"), page=value.get("page"))
        case dict():
            return {key: _restored(part) for key, part in value.items()}
        case list():
            return [_restored(part) for part in value]
        case _:
            return value


def _specs(spec: BatchSpec, plan: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools as the model sees them. With providers, which would have to be opened, the recorded ones."""
    if not spec.tools or any(isinstance(tool, ToolProvider) for tool in spec.tools):
        return recorded_tools(plan)
    return tuple(as_tool(tool).spec for tool in spec.tools)


def _jobs(plan: Plan, recordings: Recordings, agents: Mapping[int, _RecordedAgent]) -> Callable[[int, Any], Job]:
    """Makes jobs by position in the inputs, and assigns their recordings."""

    def job(position: int, value: Any) -> Job:
        agent = agents.get(position)
        if agent is None:
            return plan.job(position, value)
        made = replace(plan.job(agent.job.index, value), key=agent.job.key)
        if made.task == agent.job.task:
            made = replace(made, references_at=agent.job.references_at, images=agent.job.images)
        recordings.add(made.key, agent.recording)
        return made

    return job


async def _run(
    spec: BatchSpec,
    source: InputSource,
    plan: Plan,
    backend: RecordedBackend,
    tools: RecordedTools,
    recordings: Recordings,
) -> list[AgentResult]:
    store, admission = NoStore(), AdmissionController(Slots(InflightLimit(_INFLIGHT, fixed=True)))
    turns = BackendTurnRunner(backend, admission, Health(max_outage=0.0), Deadlines(None), spec.retry)
    loop = AgentLoop(plan.config, turns, tools, store, Deadlines(None), recorded_compaction=recordings.compaction)
    results: list[AgentResult] = []

    async def deliver(result: AgentResult) -> None:
        results.append(result)

    await Engine(EngineConfig(source, loop, store, admission, deliver, _INFLIGHT)).run()
    return sorted(results, key=lambda result: (result.index, sample_of(result.key)))
