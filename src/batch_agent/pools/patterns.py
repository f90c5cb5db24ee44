"""Patterns of prompting many agents: broadcast, scatter-gather, and reduction by one of them."""

from collections.abc import Iterable
from typing import Any

from ..core.errors import SpecError
from .pool_protocol import Pool
from .prompt_template import fill_template, require_placeholder
from .response import Response
from .response_checks import answered, failed_response, joined_texts, require_agents, with_left_out


async def broadcast(pool: Pool, prompt: str) -> list[Response]:
    """Sends a prompt to every agent. Responses are in the order of the agents. Raises SpecError for an empty pool."""
    require_agents(pool, "broadcast")
    return await pool.broadcast_prompt(prompt)


async def broadcast_and_reduce(pool: Pool, prompt: str, reduce_prompt: str, reducer_agent_index: int = 0) -> Response:
    """Sends a prompt to every agent, then `reduce_prompt` to one of them, with all answers as `{responses}`. If no
    agent has an answer, the response says so, and the reducer is not called.

    Raises SpecError for an empty pool, a reducer outside of it, or a `reduce_prompt` without its placeholder."""
    require_agents(pool, "broadcast_and_reduce")
    if not -pool.size <= reducer_agent_index < pool.size:
        raise SpecError(f"reducer_agent_index must be from 0 to {pool.size - 1}; got {reducer_agent_index}.")
    require_placeholder("reduce_prompt", reduce_prompt, "responses")
    reducer = reducer_agent_index % pool.size
    return await _reduce(pool, pool, prompt, reduce_prompt, reducer, "broadcast_and_reduce")


async def fan_out_fan_in(pool: Pool, prompt: str, collect_prompt: str, n_workers: int | None = None) -> Response:
    """Sends a prompt to the first `n_workers` agents (default: all), then `collect_prompt` to the first agent, with all
    answers as `{responses}`. If no agent has an answer, the response says so.

    Raises SpecError for an empty pool, fewer than one worker, or a `collect_prompt` without its placeholder."""
    require_agents(pool, "fan_out_fan_in")
    if n_workers is not None and n_workers < 1:
        raise SpecError(f"n_workers must be >= 1; got {n_workers}.")
    require_placeholder("collect_prompt", collect_prompt, "responses")
    workers = pool if n_workers is None else pool.slice(0, min(n_workers, pool.size))
    return await _reduce(workers, pool, prompt, collect_prompt, 0, "fan_out_fan_in")


async def scatter_gather(pool: Pool, prompts: Iterable[str]) -> list[Response]:
    """Sends each prompt to one agent. Responses are in the order of the prompts. Raises SpecError for an empty pool,
    and for a single string, which would be sent letter by letter."""
    require_agents(pool, "scatter_gather")
    all_prompts = checked_list("prompts", prompts)
    return await pool.send_all_batched(all_prompts) if all_prompts else []


async def map_gather(pool: Pool, items: Iterable[Any], prompt_template: str) -> list[Response]:
    """Like `scatter_gather`, with one prompt per item: the template with the item as `{item}`. Also raises SpecError
    for a template without the placeholder."""
    require_placeholder("prompt_template", prompt_template, "item")
    return await scatter_gather(
        pool, [fill_template(prompt_template, item=str(item)) for item in checked_list("items", items)]
    )


def checked_list(name: str, values: Iterable[Any]) -> list[Any]:
    """Raises SpecError."""
    if isinstance(values, str | bytes):
        raise SpecError(f"{name} must be a list; got a single string, {values[:40]!r}.")
    return list(values)


async def _reduce(workers: Pool, pool: Pool, prompt: str, template: str, reducer: int, pattern: str) -> Response:
    responses = await workers.broadcast_prompt(prompt)
    usable = answered(responses, pattern)
    if not usable:
        return with_left_out(failed_response(responses, pattern), responses)
    prompt = fill_template(template, responses=joined_texts(usable))
    return with_left_out(await pool.post(reducer, prompt, max_tokens=pool.max_tokens_aggregation), responses)
