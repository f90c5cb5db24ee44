"""A tree of agents: leaves answer, and supervisors make one answer of many until there is one."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from .. import aio
from ..core.errors import ErrorKind, SpecError
from .patterns import listed
from .prompt_template import fill_template, require_placeholder
from .protocol import Pool
from .response import Response
from .response_checks import answered, has_answer, joined, kind_of, naming_left_out, need_agents, nothing, problem

_ADVICE = {
    ErrorKind.CONTEXT_OVERFLOW: " Lower fanin, or ask the leaves for less.",
    ErrorKind.TRUNCATED: " Raise the pool's max_tokens_aggregation, or ask for less in reduce_prompt.",
}

Put = Callable[[int, Response], None]
"""What is told of a leaf, by its number."""
ReduceNodeResult = asyncio.Task[list[Response]]
"""A supervisor: it has the one answer of its group, or none if there is none in it."""


async def tree_reduce(
    pool: Pool, prompt: str, reduce_prompt: str, fanin: int = 50, items: Iterable[Any] | None = None
) -> Response:
    """Asks leaves: `prompt` for each item, which takes the place of `{item}`, or of every agent if there are no items.
    Then supervisors merge the answers of `fanin` leaves each, others merge theirs, and so on: `reduce_prompt` with the
    answers in the place of `{responses}`, and in that of `{level}` how far up it is, from 1 on. The response is that of
    the last supervisor; where only one leaf has an answer, it is the leaf's.

    A supervisor is asked as soon as its group is complete. Leaves without an answer are left out: the response has them
    in `left_out`, and the log tells of them. A group that its supervisor cannot merge is given to another agent, once.
    If no leaf has an answer, or two agents cannot merge a group, the response says so.

    Raises SpecError, before anything is asked, for an empty pool, no items, a fanin below 2 and prompts without the
    places for what belongs into them."""
    need_agents(pool, "tree_reduce")
    if fanin < 2:
        raise SpecError(f"fanin is {fanin}: a supervisor has to make one of 2 answers at least.")
    require_placeholder("reduce_prompt", reduce_prompt, "responses")
    if items is None:
        tree = _Tree(pool, reduce_prompt, fanin, pool.size)
        return await tree.answer([_ask_agent(pool, agent, prompt, tree.put) for agent in range(pool.size)])
    require_placeholder("prompt", prompt, "item")
    prompts = [fill_template(prompt, item=str(item)) for item in listed("items", items)]
    if not prompts:
        raise SpecError("tree_reduce has nothing to reduce: there are no items.")
    tree = _Tree(pool, reduce_prompt, fanin, len(prompts))
    return await tree.answer([_ask_all(pool, prompts, tree.put)])


async def _ask_agent(pool: Pool, agent: int, prompt: str, put: Put) -> None:
    put(agent, await pool.post(agent, prompt))


async def _ask_all(pool: Pool, prompts: Sequence[str], put: Put) -> None:
    await pool.send_all_batched(prompts, on_response=lambda response: put(response.index, response))


class _Tree:
    """Which leaves are merged with which follows from their numbers alone: neither who is done first nor who failed
    changes it."""

    def __init__(self, pool: Pool, template: str, fanin: int, leaves: int) -> None:
        loop = asyncio.get_running_loop()
        self._pool = pool
        self._template = template
        self._fanin = fanin
        self._leaves: list[asyncio.Future[Response]] = [loop.create_future() for _ in range(leaves)]
        self._loss: asyncio.Future[list[Response]] = loop.create_future()
        """The response that says which group cannot be merged."""

    def put(self, leaf: int, response: Response) -> None:
        if not self._leaves[leaf].done():  # called off after a loss
            self._leaves[leaf].set_result(response)

    async def answer(self, asking: Sequence[Coroutine[Any, Any, None]]) -> Response:
        """`asking` puts a response to every leaf."""
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(each) for each in asking]
                nodes = self._nodes(group)
                ends: list[asyncio.Future[list[Response]]] = [nodes[-1], self._loss]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in [*asked, *nodes] if self._loss.done() else []:
                    task.cancel()
        if self._loss.done():
            return self._loss.result()[0]
        responses = [leaf.result() for leaf in self._leaves]
        usable = answered(responses, "tree_reduce", "leaf")
        answer = nodes[-1].result()[0] if usable else nothing(responses, "tree_reduce", "leaf")
        return naming_left_out(answer, responses)

    def _nodes(self, group: asyncio.TaskGroup) -> list[ReduceNodeResult]:
        """All supervisors; the last has the answer of the tree."""
        starts = range(0, len(self._leaves), self._fanin)
        row = [group.create_task(self._over_leaves(number, start)) for number, start in enumerate(starts)]
        nodes, level = [*row], 1
        while len(row) > 1:
            level += 1
            below = [row[start : start + self._fanin] for start in range(0, len(row), self._fanin)]
            row = [group.create_task(self._over_nodes(level, number, each)) for number, each in enumerate(below)]
            nodes += row
        return nodes

    async def _over_leaves(self, number: int, start: int) -> list[Response]:
        members = [await leaf for leaf in self._leaves[start : start + self._fanin]]
        return await self._merged(1, number, [response for response in members if has_answer(response)])

    async def _over_nodes(self, level: int, number: int, below: Sequence[ReduceNodeResult]) -> list[Response]:
        return await self._merged(level, number, [response for node in below for response in await node])

    async def _merged(self, level: int, number: int, members: list[Response]) -> list[Response]:
        """One of many; one is left as it is, and none stays none."""
        if len(members) < 2 or self._loss.done():
            return members
        prompt = fill_template(self._template, responses=joined(members), level=str(level))
        failed = []
        for agent in (number, number + 1):
            response = await self._pool.post(agent % self._pool.size, prompt, self._pool.max_tokens_aggregation)
            if has_answer(response):
                return [response]
            failed.append(response)
        if not self._loss.done():
            self._loss.set_result([_loss(level, len(members), failed)])
        return []


def _loss(level: int, members: int, failed: Sequence[Response]) -> Response:
    kind = kind_of(failed)
    tries = "; then ".join(problem(response) for response in failed)
    what = f"tree_reduce: {members} answers at level {level} could not be merged: {tries}"
    return Response(0, error=what.rstrip(".") + "." + _ADVICE.get(kind, ""), kind=kind)
