"""Runs whose results are all in their checkpoint: no server is asked for them, and no tool is started."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from .core.errors import ErrorKind, RunStopped
from .core.facts import Started
from .core.interfaces import Store
from .core.requests import Delta, Request
from .core.traits import Traits
from .engine.loop import recalled
from .engine.source import Inputs, InputSource
from .plan.compile import Plan
from .preparing import LaidOut, Preparation, Prepared

_MOST_READ_AHEAD = 10_000
"""Inputs of an iterator that are read to find out. Of longer ones nobody knows, and their server is needed."""


class AbsentBackend:
    """In the place of a server that nobody needs."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        raise RunStopped(ErrorKind.UNAVAILABLE, "The checkpoint was whole when the run began, and is not any more.")
        yield  # a context manager has one

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def finished(preparation: Preparation, laid_out: LaidOut, store: Store) -> Prepared | None:
    """The run as its checkpoint tells it, if that has a result for every input; None where anything is left to ask."""
    kept = await store.plan()
    plan = None if kept is None else preparation.recorded_plan(laid_out.layout, kept)
    if plan is None or not await _are_all_there(preparation, plan, laid_out.inputs, store):
        return None
    assert kept is not None
    again = preparation.recorded_plan(laid_out.layout, kept)  # a plan hands out keys, each once
    assert again is not None
    return preparation.without_server(laid_out, again, AbsentBackend(preparation.recorded_traits(kept)))


async def _are_all_there(preparation: Preparation, plan: Plan, inputs: Inputs, store: Store) -> bool:
    values = inputs.rows if inputs.rows is not None else await inputs.ahead(_MOST_READ_AHEAD)
    if values is None:
        return False
    source = InputSource(Inputs(values), plan.job)
    retry_failed = preparation.spec.retry.retry_failed
    while (job := await source.take()) is not None:
        facts = await store.facts(job.key)
        if facts and isinstance(facts[0], Started):
            job = replace(job, task=facts[0].task)
        elif job.problem is None:
            return False
        if recalled(plan.rules, job, facts, retry_failed=retry_failed) is None:
            return False
    return True
