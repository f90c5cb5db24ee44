"""Complete checkpoints: a run whose results are all in its checkpoint needs no server and no tools."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..backends.prices import known_price
from ..core.agent_config import AgentConfig, Job, SampleId, sample_of
from ..core.coordinator import Coordinator
from ..core.errors import ErrorKind
from ..core.facts import Fact, Started
from ..core.fast_dataclass import dataclass
from ..core.protocols.backend import Traits
from ..core.protocols.store import Prices, Store
from ..core.requests import Delta, Request
from ..core.results import AgentError, AgentResult
from ..core.run_failure import RunStopped
from ..engine.agent_loop import result_from_facts
from ..engine.job_source import InputSource, JobSource
from ..engine.long_inputs.context_window import digest, open_window
from ..lazy_imports import lazy_modules
from ..plan.compile import Plan
from ..plan.layout import Layout
from .setup import RunSetup, input_order

with lazy_modules(globals()):
    from ..cluster import coordinator_address, shared_store
    from ..store import memory_store, sqlite

if TYPE_CHECKING:
    from ..store.sqlite import SqliteStore

_BATCH = 256
"""Number of agents whose facts are read at a time."""
MAX_READ_AHEAD = 10_000
"""The most inputs of an iterator that are read ahead to check for completeness. A run over a longer one always uses its
server."""


class CheckpointIncomplete(RunStopped):
    """The checkpoint does not contain all results."""

    def __init__(self) -> None:
        super().__init__(
            ErrorKind.UNAVAILABLE,
            "The checkpoint was complete when the run started, but results are missing now. Run it again.",
        )


class AbsentBackend:
    """Backend of a run that needs no server."""

    def __init__(self, traits: Traits, counts: Mapping[str, int] | None = None) -> None:
        """`counts`: recorded token counts of the server, by text digest."""
        self.traits = traits
        self._counts = counts or {}

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        raise CheckpointIncomplete
        yield  # makes this a generator

    async def count_tokens(self, text: str) -> int | None:
        return self._counts.get(digest(text))

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


class ReadOnlyStore:
    """Store of a run that sends no requests. Writing facts raises CheckpointIncomplete; the account of a budget is
    written as usual."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_durable = store.is_durable
        self.open, self.aclose, self.settle = store.open, store.aclose, store.settle
        self.plan, self.identity, self.facts = store.plan, store.identity, store.facts
        self.spent, self.account, self.save_account = store.spent, store.account, store.save_account

    async def save_plan(self, plan: Mapping[str, Any]) -> NoReturn:
        raise CheckpointIncomplete

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Does nothing: the inputs of the complete run stay recorded."""

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        """Does nothing: the complete run has rejected the input too."""

    def record(self, key: str, fact: Fact) -> NoReturn:
        raise CheckpointIncomplete

    def restart(self, key: str, facts: Sequence[Fact]) -> NoReturn:
        raise CheckpointIncomplete


async def mark_finished(plan: Plan, traits: Traits, store: Store, counts: Mapping[str, int]) -> None:
    """Marks the checkpoint as complete, with what a later run has to know about the server. The next run that uses a
    server removes the mark."""
    kept = {"traits": {**asdict(traits), "detected": ()}, "counts": dict(counts)}
    await store.save_plan({**plan.description, "finished": kept})


def is_marked(plan: Mapping[str, Any]) -> bool:
    return "finished" in plan


def without_mark(plan: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return plan and {name: value for name, value in plan.items() if name != "finished"}


def recorded_stage(setup: RunSetup, layout: Layout, kept: Mapping[str, Any]) -> tuple[Plan, AbsentBackend]:
    """The plan and backend of a stage, from the marked plan in its checkpoint. Raises
    CheckpointIncomplete if the plan differs."""
    plan = setup.recorded_plan(layout, kept)
    if plan is None:
        raise CheckpointIncomplete
    return plan, _absent(setup, kept)


async def recall_complete(
    setup: RunSetup,
    inputs: JobSource,
    layout: Layout,
    store: "SqliteStore",
    kept: Mapping[str, Any],
    added: Sequence[Any],
) -> tuple[Plan, AbsentBackend] | None:
    """The plan and backend of a run whose checkpoint has a result for every input; None otherwise. `kept`: the plan of
    the checkpoint. `added`: inputs that were added during earlier runs. The store keeps what was read for the run."""
    plan, server = setup.recorded_plan(layout, kept), _absent(setup, kept)
    if plan is None or not await _has_all_results(setup, plan, inputs, store, server, added):
        return None
    again = setup.recorded_plan(layout, kept)  # a plan assigns each key once
    assert again is not None
    return again, server


@dataclass(frozen=True, slots=True)
class RecordedAnswers:
    """Answers and plan in a checkpoint, or at the coordinator of a shared run. They are read without a server."""

    plan: Mapping[str, Any] | None = None
    results: Mapping[SampleId, AgentResult] = field(default_factory=dict)
    facts: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    """Facts of agents with an answer, by their keys."""
    unfinished: Mapping[SampleId, Sequence[Fact]] = field(default_factory=dict)
    """Facts of agents without an answer."""
    config: AgentConfig | None = None

    @property
    def store(self) -> Store:
        """A store with the answers, to run their agents again without a server."""
        store = memory_store.MemoryStore()
        for key, facts in self.facts.items():
            store.restart(key, facts)
        return ReadOnlyStore(store)


async def recorded_answers(setup: RunSetup) -> RecordedAnswers:
    """The answers that a run over a sequence of inputs has so far."""
    async with _open_record(setup) as record:
        kept = None if record is None else await record.plan()
        if record is None or kept is None:
            return RecordedAnswers()
        inputs, layout = await setup.layout_inputs()
        plan = setup.recorded_plan(layout, kept)
        if plan is None:
            return RecordedAnswers()
        price = known_price(plan.config.model, kept["backend"], setup.spec.spending.prices)
        order, samples = input_order(layout, inputs), setup.spec.evaluation.samples
        source = InputSource(inputs, plan.job, order, samples, plan.reads_images)
        found, unfinished = dict[SampleId, AgentResult](), dict[SampleId, Sequence[Fact]]()
        of_answers: dict[str, Sequence[Fact]] = {}
        async for jobs in _in_batches(source):
            for job, facts in zip(jobs, await record.fact_lists([job.key for job in jobs]), strict=True):
                agent = job.index, sample_of(job.key)
                result = result_from_facts(plan.config, job, facts, retry_failed=True) if facts else None
                if result is not None and result.ok:
                    found[agent] = result if price is None else replace(result, cost=price.of(result.usage))
                    of_answers[job.key] = facts
                elif facts:
                    unfinished[agent] = facts
        return RecordedAnswers(kept, found, of_answers, unfinished, plan.config)


class _Record(Protocol):
    """A checkpoint or a coordinator, for reading."""

    async def plan(self) -> Mapping[str, Any] | None: ...

    async def fact_lists(self, keys: Sequence[str]) -> Sequence[Sequence[Fact]]: ...


class _SharedRecord:
    def __init__(self, coordinator: Coordinator) -> None:
        self._documents = coordinator.documents
        self.fact_lists = coordinator.facts.read_many

    async def plan(self) -> Mapping[str, Any] | None:
        return await shared_store.stored_plan(self._documents)


@asynccontextmanager
async def _open_record(setup: RunSetup) -> AsyncIterator[_Record | None]:
    folder = setup.spec.checkpoint_dir
    if setup.spec.distribution.store is not None:
        coordinator = coordinator_address.coordinator_of(setup.spec)
        assert coordinator is not None
        await coordinator.open()
        try:
            yield _SharedRecord(coordinator)
        finally:
            await coordinator.aclose()
    elif folder is not None and (folder / "run.sqlite3").is_file():
        store = sqlite.SqliteStore(folder)
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()
    else:
        yield None


async def _in_batches(source: InputSource) -> AsyncIterator[list[Job]]:
    batch: list[Job] = []
    while (job := await source.take()) is not None:
        batch.append(job)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _absent(setup: RunSetup, kept: Mapping[str, Any]) -> AbsentBackend:
    """Stand-in for the server of a checkpoint, with its recorded traits and counts."""
    return AbsentBackend(setup.recorded_traits(kept), kept.get("finished", {}).get("counts"))


async def _has_all_results(
    setup: RunSetup, plan: Plan, inputs: JobSource, store: "SqliteStore", server: AbsentBackend, added: Sequence[Any]
) -> bool:
    """Whether every input has a result. Inputs that do not fit the context window have no facts and need none."""
    spec = setup.spec
    values = inputs.rows if inputs.rows is not None else await inputs.read_ahead(MAX_READ_AHEAD)
    samples = spec.evaluation.samples
    if values is None or (len(values) + len(added)) * samples > await store.max_ended(samples):
        return False
    order = input_order(plan.layout, inputs)
    source = InputSource(JobSource(values), plan.job, order, samples, plan.reads_images)
    source.add(added)
    window = await open_window(spec, plan.config, server) if spec.context.oversized == "refuse" else None
    async for jobs in _in_batches(source):
        for job, facts in zip(jobs, await store.fact_lists([job.key for job in jobs]), strict=True):
            if facts and isinstance(facts[0], Started):
                job = replace(job, task=facts[0].task)
            elif job.problem is None:
                if window is None or (await window.fit(job)).problem is None:
                    return False
                continue
            if result_from_facts(plan.config, job, facts, retry_failed=spec.retry.retry_failed) is None:
                return False
    return True
