"""The two flows that most people want: map and reduce, and a plan before them."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, RootModel

from ..core.errors import SpecError
from ..core.protocols import EventSink
from ..core.run_failure import RunStopped
from ..data.results import Results
from ..plan.template import parse_template
from .flow import Flow
from .result import FlowResult, Item
from .steps import Reduce

_OF_THE_WORKERS = ("task", "output_schema", "tools", "on_result", "out")


async def run_with_reduce(
    *,
    reduce: str,
    reduce_schema: Any = None,
    reducer_model: str | None = None,
    reduce_options: Mapping[str, Any] | None = None,
    events: EventSink | None = None,
    progress: bool | None = None,
    **options: Any,
) -> tuple[Results, Any]:
    """See `BatchAgent.run_with_reduce`."""
    workers, shared = _parted(options)
    flow = Flow(_required(shared, "inputs"), **shared).map("map", _required(workers, "task"), **workers)
    flow = flow.reduce("reduce", reduce, **_stage(reduce_schema, reducer_model, reduce_options))
    return _answer(await _run(flow, events, progress))


async def run_with_map_reduce(
    *,
    plan_prompt: str,
    plan_output_schema: Any,
    task: str,
    reduce: str,
    plan_inputs: Any = None,
    reduce_schema: Any = None,
    planner_model: str | None = None,
    worker_model: str | None = None,
    reducer_model: str | None = None,
    plan_options: Mapping[str, Any] | None = None,
    reduce_options: Mapping[str, Any] | None = None,
    events: EventSink | None = None,
    progress: bool | None = None,
    **options: Any,
) -> tuple[Results, Any]:
    """See `BatchAgent.run_with_map_reduce`."""
    if "inputs" in options:
        raise SpecError("The inputs of the workers are the items of the plan: give plan_inputs= instead of inputs=.")
    workers, shared = _parted({"task": task, **options})
    if worker_model is not None:
        workers["model"] = worker_model
    _check_plan(plan_output_schema)
    inputs = _planned(plan_inputs)
    plan = _Plan()
    flow = Flow(inputs, **shared).map(
        "plan", plan_prompt, on_failure="stop", **_stage(plan_output_schema, planner_model, plan_options)
    )
    flow = flow.expand("item", plan.items).map("map", workers.pop("task"), **workers)
    stage = _stage(reduce_schema, reducer_model, reduce_options)
    if isinstance(inputs, list) and len(inputs) == 1:  # of several, each part of the results would need its own
        flow = flow.with_step(Reduce("reduce", _with_plan(reduce), options=stage, given={"plan": plan.written}))
    else:
        flow = flow.reduce("reduce", reduce, **stage)
    return _answer(await _run(flow, events, progress))


class _Plan:
    """What the planner said, kept for the reducer."""

    def __init__(self) -> None:
        self._said: Any = None

    def items(self, item: Item) -> Iterable[Any]:
        self._said = item["plan"]
        return _items(item)

    def written(self) -> Any:
        return self._said


def _with_plan(task: str) -> str:
    """The plan stands before the results, unless the task says where."""
    if not isinstance(task, str) or "plan" in parse_template(task).fields:
        return task
    results = "" if "results" in parse_template(task).fields else "\n\nResults:\n{results}"
    return f"{task}\n\nPlanner output:\n{{plan}}{results}"


async def _run(flow: Flow, events: EventSink | None, progress: bool | None) -> FlowResult:
    try:
        return await flow.run(events=events, progress=progress)
    except RunStopped as stopped:
        if stopped.flow is not None:
            stopped.results = list(stopped.flow.stages["map"].results)
        raise


def _answer(outcome: FlowResult) -> tuple[Results, Any]:
    """Raises RunStopped if the reduce failed; by then the others are done, and nothing of theirs is lost."""
    results = outcome.stages["map"].results
    results.stages = outcome.stages
    if not outcome.items:
        return results, None
    [summary] = outcome.items
    if summary.error is not None:
        stopped = RunStopped(summary.error.kind, f"The reduce failed; `results` holds all others. {summary.error}")
        stopped.results, stopped.flow = list(results), outcome
        raise stopped
    return results, summary["reduce"]


def _planned(inputs: Any) -> Any:
    """What is planned: one thing, or each of several."""
    if inputs is None:
        return [{}]
    return [inputs] if isinstance(inputs, str | Mapping | BaseModel) else inputs


def _check_plan(schema: Any) -> None:
    is_model = isinstance(schema, type) and issubclass(schema, BaseModel) and not issubclass(schema, RootModel)
    if schema in (None, str, int, float, bool) or (is_model and "items" not in schema.model_fields):
        raise SpecError(f"plan_output_schema must be a list, or a model with a list called 'items'; got {schema!r}.")


def _items(item: Item) -> Iterable[Any]:
    """What a planner lists: its answer itself, or the field `items` of it."""
    plan = item["plan"]
    if isinstance(plan, RootModel):
        plan = plan.root
    elif isinstance(plan, BaseModel):
        plan = dict(plan)
    if isinstance(plan, Mapping) and "items" in plan:
        plan = plan["items"]
    if not isinstance(plan, Iterable) or isinstance(plan, str | Mapping):
        raise TypeError(f"a plan is a list, or has a field 'items' that is one; got {type(plan).__name__}")
    return plan


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What only the workers need, and what all stages share."""
    workers = {name: value for name, value in options.items() if name in _OF_THE_WORKERS}
    return workers, {name: value for name, value in options.items() if name not in _OF_THE_WORKERS}


def _stage(schema: Any, model: str | None, more: Mapping[str, Any] | None) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    more = {} if more is None else more
    if not isinstance(more, Mapping):
        raise SpecError(f"The options of a stage are a dict; got {more!r}.")
    if of_a_flow := sorted({"task", "name", "on_failure", "group_by"}.intersection(more)):
        raise SpecError(f"{of_a_flow[0]!r} is no option here: make a Flow(...) of your own for it.")
    return {"output_schema": schema, **named, **more}


def _required(options: dict[str, Any], name: str) -> Any:
    if name not in options:
        raise SpecError(f"{name}= is missing.")
    return options.pop(name)
