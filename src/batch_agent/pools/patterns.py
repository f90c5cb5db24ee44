"""Ways to ask many agents: the same of all, something else of each, and one of them about what the others said."""

from collections.abc import Iterable
from typing import Any

from ..core.errors import SpecError
from .prompt_template import fill_template, require_placeholder
from .protocol import Pool
from .response import Response
from .response_checks import answered, joined, naming_left_out, need_agents, nothing


async def broadcast(pool: Pool, prompt: str) -> list[Response]:
    """Asks every agent the same. Responses are in the order of the agents. Raises SpecError for an empty pool."""
    need_agents(pool, "broadcast")
    return await pool.broadcast_prompt(prompt)


async def broadcast_and_reduce(pool: Pool, prompt: str, reduce_prompt: str, reducer_agent_index: int = 0) -> Response:
    """Asks every agent the same, then one of them about all answers, which take the place of `{responses}` in
    `reduce_prompt`. If nobody has an answer, that is the response, and the reducer is not asked.

    Raises SpecError for an empty pool, a reducer that is not in it, and a `reduce_prompt` without its place."""
    need_agents(pool, "broadcast_and_reduce")
    if not -pool.size <= reducer_agent_index < pool.size:
        raise SpecError(
            f"reducer_agent_index is {reducer_agent_index}, and the pool has the agents 0 to {pool.size - 1}."
        )
    require_placeholder("reduce_prompt", reduce_prompt, "responses")
    reducer = reducer_agent_index % pool.size
    return await _reduced(pool, pool, prompt, reduce_prompt, reducer, "broadcast_and_reduce")


async def fan_out_fan_in(pool: Pool, prompt: str, collect_prompt: str, n_workers: int | None = None) -> Response:
    """Asks the first `n_workers` agents the same (all, if there are no more), then the first agent about all answers,
    which take the place of `{responses}` in `collect_prompt`. If nobody has an answer, that is the response.

    Raises SpecError for an empty pool, fewer than one worker, and a `collect_prompt` without its place."""
    need_agents(pool, "fan_out_fan_in")
    if n_workers is not None and n_workers < 1:
        raise SpecError(f"n_workers is {n_workers}: fan_out_fan_in needs one at least.")
    require_placeholder("collect_prompt", collect_prompt, "responses")
    workers = pool if n_workers is None else pool.slice(0, min(n_workers, pool.size))
    return await _reduced(workers, pool, prompt, collect_prompt, 0, "fan_out_fan_in")


async def scatter_gather(pool: Pool, prompts: Iterable[str]) -> list[Response]:
    """Each prompt to one agent, in turn. Responses are in the order of the prompts; none for none. Raises SpecError for
    an empty pool, and for a single text, which would be asked letter by letter."""
    need_agents(pool, "scatter_gather")
    all_prompts = listed("prompts", prompts)
    return await pool.send_all_batched(all_prompts) if all_prompts else []


async def map_gather(pool: Pool, items: Iterable[Any], prompt_template: str) -> list[Response]:
    """As `scatter_gather`, with a prompt for each item, which takes the place of `{item}` in the template. Raises
    SpecError also for a template without it."""
    require_placeholder("prompt_template", prompt_template, "item")
    return await scatter_gather(
        pool, [fill_template(prompt_template, item=str(item)) for item in listed("items", items)]
    )


def listed(name: str, values: Iterable[Any]) -> list[Any]:
    """Raises SpecError."""
    if isinstance(values, str | bytes):
        raise SpecError(f"{name} is a single text, {values[:40]!r}: give a list.")
    return list(values)


async def _reduced(workers: Pool, pool: Pool, prompt: str, template: str, reducer: int, pattern: str) -> Response:
    responses = await workers.broadcast_prompt(prompt)
    usable = answered(responses, pattern)
    if not usable:
        return naming_left_out(nothing(responses, pattern), responses)
    prompt = fill_template(template, responses=joined(usable))
    return naming_left_out(await pool.post(reducer, prompt, max_tokens=pool.max_tokens_aggregation), responses)
