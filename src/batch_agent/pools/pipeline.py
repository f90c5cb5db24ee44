"""Pipeline: stages of agents, in which the output of each stage is the input of the next."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from .pool_protocol import Pool
from .prompt_template import fill_template, require_placeholder
from .response import Response
from .response_checks import answered, no_answer_error, require_agents


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline."""

    name: str
    prompt_template: str
    """Contains `{input}`, which stands for the output of the previous stage or the initial input."""
    n_agents: int
    """Number of agents that receive the prompt, limited to the size of the pool."""
    output_transform: Callable[[list[Response]], Any] | None = None
    """Computes the stage's output from the responses, including failed ones. None: the answers, one per line."""
    output_filter: Callable[[Response], bool] | None = None
    """Selects the responses to use; None: all."""


async def run_pipeline(pool: Pool, stages: Sequence[Stage], initial_input: Any, reuse_agents: bool = True) -> Any:
    """Runs the stages and returns the output of the last one. All stages use the first agents of the pool or, without
    `reuse_agents`, each stage uses its own agents.

    Raises SpecError, before anything is sent, for no stages, an empty pool, a stage without agents or a template
    without its placeholder; BackendError, with the name of the stage, if no agent of a stage has an answer, or if its
    filter leaves no response and it has no transform. Exceptions of your functions are propagated."""
    pools = _stage_pools(pool, stages, reuse_agents)
    value = initial_input
    for stage, agents in zip(stages, pools, strict=True):
        responses = await agents.broadcast_prompt(fill_template(stage.prompt_template, input=str(value)))
        value = _output(stage, responses)
    return value


pipeline = run_pipeline


def _stage_pools(pool: Pool, stages: Sequence[Stage], reuse_agents: bool) -> list[Pool]:
    """The agents of each stage. Raises SpecError."""
    require_agents(pool, "run_pipeline")
    if not stages:
        raise SpecError("run_pipeline needs at least one stage.")
    pools, start = [], 0
    for stage in stages:
        require_placeholder(f"prompt_template of stage {stage.name!r}", stage.prompt_template, "input")
        if stage.n_agents < 1:
            raise SpecError(f"Stage {stage.name!r}: n_agents must be >= 1; got {stage.n_agents}.")
        if start >= pool.size:
            raise SpecError(
                f"No agent is left for stage {stage.name!r}: the stages before it use all {pool.size}. Lower their "
                "n_agents, or share agents between stages with reuse_agents=True."
            )
        stop = min(start + stage.n_agents, pool.size)
        pools.append(pool.slice(start, stop))
        start = 0 if reuse_agents else stop
    return pools


def _output(stage: Stage, responses: list[Response]) -> Any:
    where = f"Stage {stage.name!r}"
    if not any(response.success for response in responses):
        raise no_answer_error(responses, where)
    kept = responses
    if stage.output_filter is not None:
        kept = [response for response in responses if stage.output_filter(response)]
    if stage.output_transform is not None:
        return stage.output_transform(kept)
    if not kept:
        raise BackendError(
            ErrorKind.INVALID_OUTPUT, f"{where}: its output_filter removed all {len(responses)} responses."
        )
    usable = answered(kept, where)
    if not usable:
        raise no_answer_error(kept, where)
    return "\n".join(response.text for response in usable)
