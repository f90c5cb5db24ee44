"""Ready-made flows: map and reduce, and plan, map and reduce."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, RootModel

from ..core.errors import SpecError
from ..core.protocols.event_sink import EventSink
from ..core.run_failure import RunStopped
from ..data.results import Results
from ..plan.template import parse_template
from .flow import Flow
from .result import FlowResult, Item
from .steps import Reduce

_WORKER_OPTIONS = ("task", "output_schema", "tools", "on_result", "out")


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
    workers, shared = _split_options(options)
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
        raise SpecError("The workers' inputs are the items of the plan: use plan_inputs= instead of inputs=.")
    workers, shared = _split_options({"task": task, **options})
    if worker_model is not None:
        workers["model"] = worker_model
    _check_plan(plan_output_schema)
    inputs = _plan_inputs(plan_inputs)
    plan = _Plan()
    flow = Flow(inputs, **shared).map(
        "plan", plan_prompt, on_failure="stop", **_stage(plan_output_schema, planner_model, plan_options)
    )
    flow = flow.expand("item", plan.items).map("map", workers.pop("task"), **workers)
    stage = _stage(reduce_schema, reducer_model, reduce_options)
    if isinstance(inputs, list) and len(inputs) == 1:  # with several plans, each merge would need its own
        flow = flow.with_step(Reduce("reduce", _with_plan(reduce), options=stage, given={"plan": plan.answer}))
    else:
        flow = flow.reduce("reduce", reduce, **stage)
    return _answer(await _run(flow, events, progress))


class _Plan:
    """The planner's answer, kept for the reducer."""

    def __init__(self) -> None:
        self._answer: Any = None

    def items(self, item: Item) -> Iterable[Any]:
        self._answer = item["plan"]
        return _items(item)

    def answer(self) -> Any:
        return self._answer


def _with_plan(task: str) -> str:
    """Inserts the plan before the results, unless the task has a placeholder for it."""
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
    """Raises RunStopped if the reduce failed, with the results of the other stages."""
    results = outcome.stages["map"].results
    results.stages = outcome.stages
    if not outcome.items:
        return results, None
    [summary] = outcome.items
    if summary.error is not None:
        stopped = RunStopped(
            summary.error.kind, f"The reduce failed; the other results are in `results`. {summary.error}"
        )
        stopped.results, stopped.flow = list(results), outcome
        raise stopped
    return results, summary["reduce"]


def _plan_inputs(inputs: Any) -> Any:
    """The inputs of the planner, one or several."""
    if inputs is None:
        return [{}]
    return [inputs] if isinstance(inputs, str | Mapping | BaseModel) else inputs


def _check_plan(schema: Any) -> None:
    is_model = isinstance(schema, type) and issubclass(schema, BaseModel) and not issubclass(schema, RootModel)
    if schema in (None, str, int, float, bool) or (is_model and "items" not in schema.model_fields):
        raise SpecError(
            f"plan_output_schema must be a list type, or a model with a list field 'items'; got {schema!r}."
        )


def _items(item: Item) -> Iterable[Any]:
    """The items of a plan: the planner's answer itself, or its field `items`."""
    plan = item["plan"]
    if isinstance(plan, RootModel):
        plan = plan.root
    elif isinstance(plan, BaseModel):
        plan = dict(plan)
    if isinstance(plan, Mapping) and "items" in plan:
        plan = plan["items"]
    if not isinstance(plan, Iterable) or isinstance(plan, str | Mapping):
        raise TypeError(f"a plan must be a list, or have a list field 'items'; got {type(plan).__name__}")
    return plan


def _split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of the workers and those of all stages."""
    workers = {name: value for name, value in options.items() if name in _WORKER_OPTIONS}
    return workers, {name: value for name, value in options.items() if name not in _WORKER_OPTIONS}


def _stage(schema: Any, model: str | None, more: Mapping[str, Any] | None) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    more = {} if more is None else more
    if not isinstance(more, Mapping):
        raise SpecError(f"The options of a stage must be a dict; got {more!r}.")
    if flow_options := sorted({"task", "name", "on_failure", "group_by"}.intersection(more)):
        raise SpecError(f"{flow_options[0]!r} is not supported here: use Flow(...) instead.")
    return {"output_schema": schema, **named, **more}


def _required(options: dict[str, Any], name: str) -> Any:
    if name not in options:
        raise SpecError(f"{name}= is missing.")
    return options.pop(name)
