"""Checkpoints that hold every result of a run: no server is asked, and no tool is started."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn

from ..core.errors import ErrorKind
from ..core.facts import Fact, Started
from ..core.protocols import Store, Traits
from ..core.requests import Delta, Request
from ..core.run_failure import RunStopped
from ..engine.agent_loop import recalled
from ..engine.context_window import digest, open_window
from ..engine.inputs import InputSource, JobSource
from ..plan.compile import Plan
from ..plan.layout import Layout
from .setup import RunSetup, asking_order

MOST_READ_AHEAD = 10_000
"""Inputs of an iterator that are read to find out. Of longer ones nobody knows, and their server is needed."""


class NotFinished(RunStopped):
    """The checkpoint does not hold all results."""

    def __init__(self) -> None:
        super().__init__(
            ErrorKind.UNAVAILABLE, "The checkpoint was whole when the run began, and is not any more. Run it again."
        )


class AbsentBackend:
    """Stands in for a server that is not needed."""

    def __init__(self, traits: Traits, counts: Mapping[str, int] | None = None) -> None:
        """`counts`: the tokens of texts as the server counted them, by their digests."""
        self.traits = traits
        self._counts = counts or {}

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        raise NotFinished
        yield  # a context manager has one

    async def count_tokens(self, text: str) -> int | None:
        return self._counts.get(digest(text))

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


class ReadOnlyStore:
    """The checkpoint of a run that asks nobody. Whatever would be written of an agent raises NotFinished; the account
    of a budget is kept as ever."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_durable = store.is_durable
        self.open, self.aclose, self.settle = store.open, store.aclose, store.settle
        self.plan, self.identity, self.facts = store.plan, store.identity, store.facts
        self.spent, self.account, self.keep_account = store.spent, store.account, store.keep_account

    async def keep_plan(self, plan: Mapping[str, Any]) -> NoReturn:
        raise NotFinished

    def record(self, key: str, fact: Fact) -> NoReturn:
        raise NotFinished

    def restart(self, key: str, facts: Sequence[Fact]) -> NoReturn:
        raise NotFinished


async def mark_finished(plan: Plan, traits: Traits, store: Store, counts: Mapping[str, int]) -> None:
    """Keeps what a later run has to know of the server to need none. The next run that asks one takes the mark away."""
    kept = {"traits": {**asdict(traits), "detected": ()}, "counts": dict(counts)}
    await store.keep_plan({**plan.description, "finished": kept})


def is_marked(plan: Mapping[str, Any]) -> bool:
    return "finished" in plan


def unmarked(plan: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return plan and {name: value for name, value in plan.items() if name != "finished"}


def recorded_stage(setup: RunSetup, layout: Layout, kept: Mapping[str, Any]) -> tuple[Plan, AbsentBackend]:
    """A stage of a flow, by the marked plan that its checkpoint keeps. Raises NotFinished where that is another one."""
    plan = setup.recorded_plan(layout, kept)
    if plan is None:
        raise NotFinished
    return plan, _absent(setup, kept)


async def recall_complete(
    setup: RunSetup, inputs: JobSource, layout: Layout, store: Store, kept: Mapping[str, Any]
) -> tuple[Plan, AbsentBackend] | None:
    """The run as its checkpoint has it, if that has a result for every input; None where anything is left to ask.
    `kept`: the plan of the checkpoint."""
    plan, server = setup.recorded_plan(layout, kept), _absent(setup, kept)
    if plan is None or not await _are_all_there(setup, plan, inputs, store, server):
        return None
    again = setup.recorded_plan(layout, kept)  # a plan hands out keys, each once
    assert again is not None
    return again, server


def _absent(setup: RunSetup, kept: Mapping[str, Any]) -> AbsentBackend:
    """The server of a checkpoint, as far as that tells of it."""
    return AbsentBackend(setup.recorded_traits(kept), kept.get("finished", {}).get("counts"))


async def _are_all_there(setup: RunSetup, plan: Plan, inputs: JobSource, store: Store, server: AbsentBackend) -> bool:
    """As the run itself will find: inputs that its window refuses have no facts, and need none."""
    spec = setup.spec
    values = inputs.rows if inputs.rows is not None else await inputs.ahead(MOST_READ_AHEAD)
    if values is None:
        return False
    source = InputSource(JobSource(values), plan.job, asking_order(plan.layout, inputs))
    window = await open_window(spec, plan.rules, server) if spec.context.oversized == "refuse" else None
    while (job := await source.take()) is not None:
        facts = await store.facts(job.key)
        if facts and isinstance(facts[0], Started):
            job = replace(job, task=facts[0].task)
        elif job.problem is None:
            if window is None or (await window.fit(job)).problem is None:
                return False
            continue
        if recalled(plan.rules, job, facts, retry_failed=spec.retry.retry_failed) is None:
            return False
    return True
