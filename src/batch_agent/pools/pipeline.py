"""Stages of agents, one after another: what one gives is what the next is asked about."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from .prompt_template import fill_template, require_placeholder
from .protocol import Pool
from .response import Response
from .response_checks import answered, need_agents, no_answer


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline."""

    name: str
    prompt_template: str
    """`{input}` is the place of what the stage before gave, or of the first input."""
    n_agents: int
    """How many are asked, all of them the same; fewer where the pool has no more."""
    output_transform: Callable[[list[Response]], Any] | None = None
    """Makes of the responses what the next stage is given. It sees those that failed too. None: the answers, one below
    the other."""
    output_filter: Callable[[Response], bool] | None = None
    """Which responses the transform sees; None: all."""


async def run_pipeline(pool: Pool, stages: Sequence[Stage], initial_input: Any, reuse_agents: bool = True) -> Any:
    """What the last stage gives. All stages have the first agents of the pool, or, without `reuse_agents`, each has
    agents of its own.

    Raises SpecError, before anything is asked, for no stages, an empty pool, a stage without agents and a template
    without its place; BackendError, with the name of the stage, where no agent of a stage has an answer, or where its
    filter leaves none and there is no transform to say what that means. What your functions raise comes through."""
    pools = _pools(pool, stages, reuse_agents)
    value = initial_input
    for stage, agents in zip(stages, pools, strict=True):
        responses = await agents.broadcast_prompt(fill_template(stage.prompt_template, input=str(value)))
        value = _output(stage, responses)
    return value


pipeline = run_pipeline


def _pools(pool: Pool, stages: Sequence[Stage], reuse_agents: bool) -> list[Pool]:
    """Who does what. Raises SpecError."""
    need_agents(pool, "run_pipeline")
    if not stages:
        raise SpecError("run_pipeline has nothing to do: there are no stages.")
    pools, start = [], 0
    for stage in stages:
        require_placeholder(f"prompt_template of stage {stage.name!r}", stage.prompt_template, "input")
        if stage.n_agents < 1:
            raise SpecError(f"Stage {stage.name!r} has n_agents={stage.n_agents}: it needs one at least.")
        if start >= pool.size:
            raise SpecError(
                f"No agent is left for stage {stage.name!r}: the stages before it have all {pool.size}. Lower their "
                "n_agents, or let stages share agents with reuse_agents=True."
            )
        stop = min(start + stage.n_agents, pool.size)
        pools.append(pool.slice(start, stop))
        start = 0 if reuse_agents else stop
    return pools


def _output(stage: Stage, responses: list[Response]) -> Any:
    where = f"Stage {stage.name!r}"
    if not any(response.success for response in responses):
        raise no_answer(responses, where)
    kept = responses if stage.output_filter is None else [each for each in responses if stage.output_filter(each)]
    if stage.output_transform is not None:
        return stage.output_transform(kept)
    if not kept:
        raise BackendError(
            ErrorKind.INVALID_OUTPUT, f"{where}: its output_filter left none of {len(responses)} responses."
        )
    usable = answered(kept, where)
    if not usable:
        raise no_answer(kept, where)
    return "\n".join(response.text for response in usable)
