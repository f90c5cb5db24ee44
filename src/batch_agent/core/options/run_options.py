"""Keyword arguments of the calls that start agents, as TypedDicts for `**options: Unpack[...]`.

Overloads of `BatchAgent` declare `output_schema` themselves: the type of the results depends on it."""

from typing import Any, Required

from ..protocols.event_sink import EventSinks
from ..task_fields import Fields
from .types import AgentOptions, CommonOptions


class TaskOptions(CommonOptions, total=False):
    """Options of agents that work on a list of inputs."""

    task: Required[str | Fields]
    """Prompt template of an agent: `{field}` is replaced by that field of its input."""
    inputs: Required[Any]
    """An iterable, sync or async; or a file, a folder, a table, a dataset or a query: docs/data.md."""


class SpecOptions(TaskOptions, total=False):
    """Options of `BatchSpec.of`, `BatchAgent.lint` and `BatchAgent.plan`."""

    output_schema: Any
    """Type of an answer: a Pydantic model, any type, or a JSON schema as a dict. None: text."""


class RunOptions(TaskOptions, total=False):
    """Options of `BatchAgent.run`, `run_sync` and `stream`, besides `output_schema`."""

    events: EventSinks
    """A sink, or several, that receive every event of the run: docs/observability.md."""
    progress: bool | None
    """Show the progress of the run. None: in a terminal or a notebook, unless `events` is given."""


class StageOptions(CommonOptions, total=False):
    """Options of a stage of a flow: `Flow.map`, `Flow.reduce`, `plan_options=` and `reduce_options=`."""

    output_schema: Any
    """Type of an answer: a Pydantic model, any type, or a JSON schema as a dict. None: text."""


class ReduceOptions(RunOptions, total=False):
    """Options of `BatchAgent.run_with_reduce`, besides `output_schema` and `reduce_schema`."""

    reduce: Required[str]
    """Prompt that combines all results. `{n}`: their number."""
    reducer_model: str | None
    """Model of the reduce, if not `model`."""
    reduce_options: StageOptions | None
    """Options of the reduce alone."""


class MapReduceOptions(CommonOptions, total=False):
    """Options of `BatchAgent.run_with_map_reduce`, besides `output_schema` and `reduce_schema`."""

    plan_prompt: Required[str]
    """Prompt of the plan. `{field}` is replaced by that field of `plan_inputs`."""
    plan_output_schema: Required[Any]
    """Type of the plan: a list, or a model with a list `items`."""
    plan_inputs: Any
    """The fields of `plan_prompt`, or a list of such inputs, each with a plan of its own."""
    task: Required[str | Fields]
    """Prompt template of the agent for each item of the plan: `{item}`, `{item.title}`, `{index}`."""
    reduce: Required[str]
    """Prompt that combines all results. `{n}`: their number."""
    planner_model: str | None
    """Model of the plan, if not `model`."""
    worker_model: str | None
    """Model of the agents that work on the items, if not `model`."""
    reducer_model: str | None
    """Model of the reduce, if not `model`."""
    plan_options: StageOptions | None
    """Options of the plan alone."""
    reduce_options: StageOptions | None
    """Options of the reduce alone."""
    events: EventSinks
    """A sink, or several, that receive every event of the flow: docs/observability.md."""
    progress: bool | None
    """Show the progress of the flow. None: in a terminal or a notebook, unless `events` is given."""


class WorkOptions(StageOptions, total=False):
    """Options of `BatchAgent.work`: those of the run that it joins."""

    task: Required[str | Fields]
    """Prompt template of an agent, as in the run."""
    inputs: Any
    """Not needed: the inputs come from the run."""


class MapOptions(StageOptions, total=False):
    """Options of `BatchAgent.map`, besides its own."""

    task: Required[str | Fields]
    """Prompt template of an agent: {column} is a column of its row."""


class ReplayOptions(AgentOptions, total=False):
    """Options of `BatchAgent.replay`, to replace those that were recorded."""

    task: str | Fields
    """Prompt template of an agent. Left out: as recorded."""
    inputs: Any
    """Inputs of the agents. Left out: as recorded."""
    output_schema: Any
    """Type of an answer. Left out: as recorded."""
