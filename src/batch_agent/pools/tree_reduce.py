"""Tree reduction: leaves answer, and supervisors merge their answers until one is left."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from .. import aio
from ..core.errors import ErrorKind, SpecError
from .patterns import checked_list
from .pool_protocol import Pool
from .prompt_template import fill_template, require_placeholder
from .response import Response
from .response_checks import (
    answered,
    failed_response,
    has_answer,
    joined_texts,
    kind_of,
    problem,
    require_agents,
    with_left_out,
)

_ADVICE = {
    ErrorKind.CONTEXT_OVERFLOW: " Lower fanin, or request shorter answers from the leaves.",
    ErrorKind.TRUNCATED: " Raise the pool's max_tokens_aggregation, or request a shorter answer in reduce_prompt.",
}

PutLeaf = Callable[[int, Response], None]
"""Receives the response of the leaf with this index."""
ReduceNodeResult = asyncio.Task[list[Response]]
"""A supervisor. Its result is the single answer of its group, or empty if the group has no answer."""


async def tree_reduce(
    pool: Pool, prompt: str, reduce_prompt: str, fanin: int = 50, items: Iterable[Any] | None = None
) -> Response:
    """Sends `prompt` to the leaves: once per item, with the item as `{item}`, or to every agent if there are no items.
    Supervisors then merge the answers of `fanin` leaves each, others merge their results, and so on: each gets
    `reduce_prompt` with the answers as `{responses}` and the level, from 1 on, as `{level}`. Returns the response of
    the last supervisor; if only one leaf has an answer, that of the leaf.

    A supervisor is called as soon as its group is complete. Leaves without an answer are left out: they are logged, and
    listed in the response's `left_out`. A group that its supervisor fails to merge is sent to another agent, once. If
    no leaf has an answer, or two agents fail to merge a group, the response says so.

    Raises SpecError, before anything is sent, for an empty pool, no items, a fanin below 2 or prompts without their
    placeholders."""
    require_agents(pool, "tree_reduce")
    if fanin < 2:
        raise SpecError(f"fanin must be >= 2; got {fanin}.")
    require_placeholder("reduce_prompt", reduce_prompt, "responses")
    if items is None:
        tree = _Tree(pool, reduce_prompt, fanin, pool.size)
        return await tree.answer([_prompt_agent(pool, agent, prompt, tree.put) for agent in range(pool.size)])
    require_placeholder("prompt", prompt, "item")
    prompts = [fill_template(prompt, item=str(item)) for item in checked_list("items", items)]
    if not prompts:
        raise SpecError("tree_reduce needs at least one item.")
    tree = _Tree(pool, reduce_prompt, fanin, len(prompts))
    return await tree.answer([_prompt_all(pool, prompts, tree.put)])


async def _prompt_agent(pool: Pool, agent: int, prompt: str, put: PutLeaf) -> None:
    put(agent, await pool.post(agent, prompt))


async def _prompt_all(pool: Pool, prompts: Sequence[str], put: PutLeaf) -> None:
    await pool.send_all_batched(prompts, on_response=lambda response: put(response.index, response))


class _Tree:
    """The supervisors and leaves of a call. The grouping of leaves depends only on their indices, not on the order in
    which they finish or on failures."""

    def __init__(self, pool: Pool, template: str, fanin: int, leaves: int) -> None:
        loop = asyncio.get_running_loop()
        self._pool = pool
        self._template = template
        self._fanin = fanin
        self._leaves: list[asyncio.Future[Response]] = [loop.create_future() for _ in range(leaves)]
        self._failure: asyncio.Future[list[Response]] = loop.create_future()
        """The response for a group that could not be merged."""

    def put(self, leaf: int, response: Response) -> None:
        if not self._leaves[leaf].done():  # cancelled after a failure
            self._leaves[leaf].set_result(response)

    async def answer(self, leaves: Sequence[Coroutine[Any, Any, None]]) -> Response:
        """Runs the leaves and returns the answer of the tree. `leaves`: must put a response to every leaf."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                leaf_tasks = [group.create_task(each) for each in leaves]
                nodes = self._nodes(group)
                ends: list[asyncio.Future[list[Response]]] = [nodes[-1], self._failure]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in [*leaf_tasks, *nodes] if self._failure.done() else []:
                    task.cancel()
        if self._failure.done():
            return self._failure.result()[0]
        responses = [leaf.result() for leaf in self._leaves]
        usable = answered(responses, "tree_reduce", "leaf")
        answer = nodes[-1].result()[0] if usable else failed_response(responses, "tree_reduce", "leaf")
        return with_left_out(answer, responses)

    def _nodes(self, group: asyncio.TaskGroup) -> list[ReduceNodeResult]:
        """All supervisors. The last one has the answer of the tree."""
        starts = range(0, len(self._leaves), self._fanin)
        row = [group.create_task(self._merge_leaves(number, start)) for number, start in enumerate(starts)]
        nodes, level = [*row], 1
        while len(row) > 1:
            level += 1
            below = [row[start : start + self._fanin] for start in range(0, len(row), self._fanin)]
            row = [group.create_task(self._merge_nodes(level, number, each)) for number, each in enumerate(below)]
            nodes += row
        return nodes

    async def _merge_leaves(self, number: int, start: int) -> list[Response]:
        members = [await leaf for leaf in self._leaves[start : start + self._fanin]]
        return await self._merge(1, number, [response for response in members if has_answer(response)])

    async def _merge_nodes(self, level: int, number: int, below: Sequence[ReduceNodeResult]) -> list[Response]:
        return await self._merge(level, number, [response for node in below for response in await node])

    async def _merge(self, level: int, number: int, members: list[Response]) -> list[Response]:
        """Merges several answers into one. A single answer, or none, is returned unchanged."""
        if len(members) < 2 or self._failure.done():
            return members
        prompt = fill_template(self._template, responses=joined_texts(members), level=str(level))
        failed = []
        for agent in (number, number + 1):
            response = await self._pool.post(agent % self._pool.size, prompt, self._pool.max_tokens_aggregation)
            if has_answer(response):
                return [response]
            failed.append(response)
        if not self._failure.done():
            self._failure.set_result([_merge_failure(level, len(members), failed)])
        return []


def _merge_failure(level: int, members: int, failed: Sequence[Response]) -> Response:
    kind = kind_of(failed)
    tries = "; then ".join(problem(response) for response in failed)
    what = f"tree_reduce: {members} answers at level {level} could not be merged: {tries}"
    return Response(0, error=what.rstrip(".") + "." + _ADVICE.get(kind, ""), kind=kind)
