"""Runner: opens the resources of a run, and drives its agents to the last result."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import aio
from ..aio import Deadlines
from ..backends.prices import known_price
from ..core.agent_config import SampleId, sample_of, without_sample
from ..core.coordinator import Coordinator
from ..core.events import PrefixReported, RunStarted, SchedulingReported
from ..core.protocols.agent_executor import WorkSource
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Prices, ReadsGroups
from ..core.requests import Lane
from ..core.results import AgentResult
from ..engine.agent_loop import AgentLoop
from ..engine.engine import Deliver, Engine, EngineConfig, Fit, Leave
from ..engine.job_source import GroupedSource, InputSource
from ..engine.prefix_warmup import PrefixWarmup
from ..engine.result_stream import Delivery, ResultChannel
from ..engine.turn_runner import BackendTurnRunner, TurnRunner, WrappedTurnRunner
from ..lazy_imports import lazy_modules
from ..plan.compile import prefix_chars
from ..plan.row_keys import row_key
from ..store.memory_store import NoStore
from .complete_checkpoint import mark_finished
from .resource_opener import format_findings, open_resources
from .resources import RunResources
from .setup import RunSetup, input_order

with lazy_modules(globals()):
    from .. import data
    from ..cluster import submitter
    from ..engine.long_inputs import chunking_executor, input_chunker
    from ..lanes import batch_backend, lane_turn_runner
    from ..observe import score_file
    from ..programs import host
    from ..rollouts import token_recorder
    from ..scores import judge, score_book, scorer
    from . import description

if TYPE_CHECKING:
    from ..cluster.added_inputs import AddedInputs
    from ..cluster.submitter import Submitter
    from ..engine.long_inputs.chunking_executor import ChunkingExecutor
    from ..lanes.lane_turn_runner import LaneStats
    from ..rollouts.token_recorder import TokenRecorder
    from ..scores.score_book import ScoreBook

_WORTH_WARMING = 4096
"""Characters. Services that benefit from a warm-up do not cache prefixes of less than a thousand tokens."""

Put = Callable[[AgentResult], Awaitable[None]]
Write = Callable[[AgentResult], None]


async def run(
    setup: RunSetup,
    channel: ResultChannel,
    *,
    only: Sequence[int] | None = None,
    coordinator: Coordinator | None = None,
    runs_agents: bool = True,
) -> None:
    """Runs a spec, alone or distributed through a coordinator; the results go to the channel. `only`, `runs_agents`: as
    for `execute`. Raises SpecError, BackendError, RunStopped and StoreError."""
    async with open_resources([setup], setup.events, coordinator) as [resources]:
        channel.total = resources.agents
        if resources.control is not None:
            resources.control.observe_added(channel.add_total)
        elif resources.added is not None:
            samples = setup.spec.evaluation.samples
            resources.added.observe_added(lambda inputs: channel.add_total(inputs * samples))
        try:
            await execute(resources, channel.put, only=only, runs_agents=runs_agents)
        finally:
            channel.scheduling, channel.report = resources.scheduling, resources.measured_report


async def work(setup: RunSetup, coordinator: Coordinator) -> None:
    """Works for a run that another process submitted; its jobs come from the coordinator. Returns when the run has no
    work left. Raises SpecError (PlanMismatch if this process has another plan), BackendError, RunStopped and
    StoreError."""
    if setup.input_fields is None:
        setup = replace(setup, input_fields=())
    async with open_resources([setup], setup.events, coordinator, submits=False) as [resources]:
        await work_on(resources)


async def work_on(resources: RunResources) -> None:
    """Runs agents that another process submitted, as `work` does, with resources that are open already."""
    await _Execution(resources).work()


async def work_for_flow(
    setups: Sequence[RunSetup], events: EventSink | None, coordinator: Coordinator, stages: Sequence[Coordinator]
) -> None:
    """Works for the stages of a flow that another process runs, until none of them has work left. Raises as `work`
    does."""
    setups = [each if each.input_fields is not None else replace(each, input_fields=()) for each in setups]
    async with open_resources(setups, events, coordinator, stages=stages, submits=False) as runs:
        with aio.ungrouped():
            async with asyncio.TaskGroup() as group:
                for resources in runs:
                    group.create_task(work_on(resources))


async def execute(
    resources: RunResources,
    put: Put,
    *,
    only: Sequence[int] | None = None,
    without: Set[SampleId] = frozenset(),
    runs_agents: bool = True,
) -> None:
    """Drives a run, or one stage of a flow, to its end. `put`: receives each result as its agent finishes.

    `only`: indices of the inputs to run, for a sequence; None: all of them. `without`: samples of these to leave out.
    `runs_agents`: of a distributed run, whether agents run in this process too. Raises RunStopped and StoreError."""
    execution, spec = _Execution(resources), resources.setup.spec
    execution.announce()
    if resources.store.is_durable and only is None:
        await _save_run(resources, execution.prices)
    try:
        if spec.out is None or only is not None:
            await execution.run(put, None, only, without, runs_agents=runs_agents)
        else:
            async with data.result_file_writer(spec.out) as write:
                await execution.run(put, write, only, without, runs_agents=runs_agents)
        is_new = resources.store.is_durable and not resources.is_complete
        if is_new and only is None and execution.has_all_results:
            await mark_finished(resources.plan, resources.server.traits, resources.store, resources.counts)
    finally:
        if execution.scores is not None and spec.checkpoint_dir is not None:
            await asyncio.to_thread(score_file.save_scores, spec.checkpoint_dir, execution.scores.scores)
        if execution.scores is not None and resources.cluster is not None:
            await resources.cluster.save_scores(execution.scores.scores)
        if resources.events is not None:
            execution.report(resources.events)


async def _save_run(resources: RunResources, prices: Prices | None) -> None:
    """Records the inputs and the prices of the model, for readers of the checkpoint."""
    if resources.cluster is None:
        resources.store.save_run(_known_inputs(resources), prices)
    else:
        await resources.cluster.save_run(_known_inputs(resources), prices)


def _known_inputs(resources: RunResources) -> Sequence[Any]:
    """All inputs, if they are a list: other sequences may read a file or a database for each input."""
    rows, control = resources.inputs.rows, resources.control
    added = () if control is None else control.kept.added
    return (*rows, *added) if isinstance(rows, list | tuple) else ()


def _score_book(setup: RunSetup) -> "ScoreBook | None":
    """Book of scores; None if nothing is scored while answers arrive. Judges run after the last answer."""
    scorers = [each for each in scorer.scorers_of(setup.spec.evaluation.score) if not judge.is_judge(each)]
    return score_book.ScoreBook(scorers, setup.notify) if scorers else None


class _Execution:
    """One run in progress."""

    def __init__(self, resources: RunResources) -> None:
        self._resources = resources
        self._spec = resources.setup.spec
        self._events = resources.events
        self.has_all_results = resources.cluster is None
        """Whether every agent has ended and is in the checkpoint. In a distributed run, this is known only at the
        end."""
        self.scores = _score_book(resources.setup) if self._spec.evaluation.score else None

    @property
    def prices(self) -> Prices | None:
        resources = self._resources
        price = known_price(resources.plan.config.model, resources.server.traits.name, self._spec.spending.prices)
        return None if price is None else price.numbers

    def announce(self) -> None:
        """Reports the start of the run, and what prompts share. Without a sink, only problems are reported. A single
        agent shares no prompt, and the prompts of programs are unknown."""
        resources, setup = self._resources, self._resources.setup
        if self._events is not None:
            self._events.emit(self._started(resources.agents, self.prices))
        if self._spec.runtime is not None or (setup.events is None and resources.agents == 1):
            return
        report = resources.report()
        if setup.events is not None and self._events is not None:
            self._events.emit(PrefixReported(report))
        elif report.findings:
            setup.notify(format_findings(report.findings))

    def report(self, events: EventSink) -> None:
        """Reports how the run was scheduled, and the hits in the prefix cache."""
        events.emit(SchedulingReported(self._resources.scheduling))
        first_turns = self._resources.admission.first_turns
        if first_turns.cached and self._spec.runtime is None:
            events.emit(PrefixReported(self._resources.measured_report()))

    async def run(
        self, put: Put, write: Write | None, only: Sequence[int] | None, without: Set[SampleId], *, runs_agents: bool
    ) -> None:
        resources, spec = self._resources, self._spec
        order = only or input_order(resources.plan.layout, resources.inputs)
        plan = resources.plan
        source = InputSource(resources.inputs, plan.job, order, spec.evaluation.samples, plan.reads_images, without)
        deliver: Deliver = Delivery(put, spec.on_result, write, self._events, self._completed()).deliver
        if resources.lanes is not None:
            deliver = resources.lanes.counting(deliver)
            resources.deadline.observe(resources.lanes.set_deadline)
            if resources.control is not None:
                resources.control.observe_added(resources.lanes.expect)

        async def run_agents(turns: TurnRunner, leave: Leave | None) -> None:
            executor, fit = self._executor(turns, leave), self._fit()
            if resources.cluster is None:
                engine = self._engine(self._in_groups(source), executor, deliver, fit, self._events, leave)
                if resources.live is not None and only is None:
                    resources.live.attach(engine)
                if resources.control is not None and only is None:
                    samples = spec.evaluation.samples
                    resources.control.attach(engine, source, resources.inputs, plan, samples)
                await engine.run()
            else:
                added = resources.added if only is None else None
                await self._share(source, executor, deliver, fit, leave, added, runs_agents=runs_agents)

        await self._with_turns(run_agents, runs_agents=runs_agents)

    def _in_groups(self, source: InputSource) -> WorkSource:
        """The source for a run that may have facts already. Iterators are not read ahead, and neither are images."""
        store, rows = self._resources.store, self._resources.inputs.rows
        if not store.is_durable or not rows or self._resources.plan.reads_images(rows[0]):
            return source
        return GroupedSource(source, store.fact_lists) if isinstance(store, ReadsGroups) and store.has_facts else source

    def _completed(self) -> Callable[[AgentResult], AgentResult] | None:
        """A function that adds to a result what only the caller sees: cost, key of its row and files made by tools.
        None if there is nothing to add."""
        traits, model = self._resources.server.traits, self._resources.plan.config.model
        price = known_price(model, traits.name, self._spec.spending.prices)
        has_row_keys, artifacts = self._spec.rows.key is not None, self._resources.setup.artifacts
        sampled, named = self._spec.evaluation.samples > 1, self._resources.setup.compared_model
        has_none = price is None and not has_row_keys and artifacts is None
        if has_none and not sampled and named is None and self.scores is None:
            return None

        def completed(result: AgentResult) -> AgentResult:
            full = result.key
            key = row_key(full) if has_row_keys else without_sample(full) if sampled else full
            done = replace(
                result,
                key=key,
                cost=None if price is None else price.of(result.usage),
                artifacts=() if artifacts is None else artifacts.files(full),
                sample=sample_of(full) if sampled else None,
                model=named,
            )
            return done if self.scores is None else self.scores.add(done)

        return completed

    async def work(self) -> None:
        """Runs agents that another process submitted."""
        cluster = self._resources.cluster
        assert cluster is not None
        if self._events is not None:
            self._events.emit(self._started(None, None))

        async def run_agents(turns: TurnRunner, leave: Leave | None) -> None:
            source = cluster.source(self._resources.admission, ends_by_itself=True)
            executor = self._executor(turns, leave)
            engine = self._engine(source, executor, submitter.complete_via(cluster), None, self._events, leave)
            if self._resources.live is not None:
                self._resources.live.attach(engine)
            await engine.run()

        try:
            await self._with_turns(run_agents)
        finally:
            if self._events is not None:
                self._events.emit(SchedulingReported(self._resources.scheduling))

    async def _share(
        self,
        inputs: InputSource,
        executor: "AgentLoop | ChunkingExecutor",
        deliver: Deliver,
        fit: Fit | None,
        leave: Leave | None,
        added: "AddedInputs | None",
        *,
        runs_agents: bool,
    ) -> None:
        """Submits the inputs to all workers of the run, and collects the results. `added`: inputs that are added during
        the run."""
        resources, cluster = self._resources, self._resources.cluster
        assert cluster is not None
        rebuild, close = executor.from_remote, None if added is None else added.close
        results = submitter.Submitter(cluster, inputs, fit, rebuild, deliver, self._events, resources.deadline, close)
        if added is not None:
            await self._open_additions(added, inputs, results)
        try:
            if runs_agents:
                source = cluster.source(resources.admission)
                engine = self._engine(source, executor, results.finished_here, None, cluster.events.local, leave)
                if resources.live is not None:
                    resources.live.attach(engine)
                await submitter.work_and_collect(engine, source, results)
            else:
                await results.collect()
        finally:
            if added is not None:
                await added.leave()
        self.has_all_results = cluster.has_checkpoint and results.has_all_results

    async def _open_additions(self, added: "AddedInputs", inputs: InputSource, results: "Submitter") -> None:
        live, samples, lanes = self._resources.live, self._spec.evaluation.samples, self._resources.lanes

        def take(values: Sequence[Any]) -> None:
            inputs.add(values)
            results.read_more()

        def expect(values: int) -> None:
            if live is not None:
                live.expect(values * samples)
            if lanes is not None:
                lanes.expect(values * samples)

        added.observe_added(expect)
        await added.open(take)

    async def _with_turns(
        self, run_agents: Callable[[TurnRunner, Leave | None], Awaitable[None]], *, runs_agents: bool = True
    ) -> None:
        """Runs agents whose turns are run by the model or by programs. `runs_agents`: False if all of them run in other
        processes, where their programs are started."""
        resources, spec = self._resources, self._spec
        standard = BackendTurnRunner(
            resources.backend,
            resources.admission,
            resources.health,
            Deadlines(None if spec.lane == "batch" else spec.timeouts.turn),
            spec.retry,
            self._warmup(),
            self._events,
        )
        turns = standard if resources.lanes is None else self._in_lanes(standard, resources.lanes)
        recorder = None
        if spec.tokens and not resources.is_complete:
            recorder = token_recorder.TokenRecorder(resources.store, resources.server)
        if spec.runtime is None or resources.is_complete or not runs_agents:
            leave: Leave | None = resources.backend.leave if resources.server.traits.has_agent_sessions else None
            if recorder is not None:
                turns, leave = recorder.around(turns, leave)
            await run_agents(turns, leave)
            self._report_tokens(recorder)
            return
        config, traits = resources.plan.config, resources.server.traits
        async with host.open_program_host(
            spec, config, traits, turns, resources.setup.notify, recorder
        ) as program_turns:
            await run_agents(program_turns, program_turns.leave)
        self._report_tokens(recorder)

    def _report_tokens(self, recorder: "TokenRecorder | None") -> None:
        if recorder is not None and (text := recorder.report()) is not None:
            self._resources.setup.notify(text)

    def _in_lanes(self, standard: BackendTurnRunner, lanes: "LaneStats") -> TurnRunner:
        """The turn runner of a run that may use other lanes than the standard one."""
        runners: dict[Lane, TurnRunner] = {"standard": standard}
        if "flex" in lanes.lanes:
            runners["flex"] = replace(standard, turn_time=Deadlines(self._spec.timeouts.in_lane("flex").turn))
        if "batch" in lanes.lanes:
            runners["batch"] = lane_turn_runner.turns_in_batches(standard)
        in_lanes = lane_turn_runner.LaneTurnRunner(runners, lanes, self._resources.outlook)
        batch = self._resources.batch
        if isinstance(batch, batch_backend.BatchBackend):
            batch.is_worth_a_wave, in_lanes.submitted = in_lanes.is_worth_a_wave, batch.submitted
        return WrappedTurnRunner(standard, in_lanes.turn)

    def _executor(self, turns: TurnRunner, leave: Leave | None) -> "AgentLoop | ChunkingExecutor":
        resources, spec = self._resources, self._spec
        agent_time = Deadlines(spec.timeouts.in_lane(spec.lane).agent, resources.deadline.at)
        if resources.live is not None:
            resources.live.observe_agent_time(agent_time)
        loop = AgentLoop(
            resources.plan.config,
            turns,
            resources.tool_set,
            resources.store,
            agent_time,
            spec.retry.retry_failed,
            resources.summarizer,
            resources.deadline,
            reads=resources.reads,
            shared_tools=resources.shared_tools,
        )
        if spec.context.oversized == "refuse" and isinstance(resources.store, NoStore):
            return loop  # no input is in parts, now or in an earlier run
        return chunking_executor.ChunkingExecutor(
            loop,
            resources.admission,
            resources.store,
            resources.window,
            max_dispatched=spec.max_dispatched,
            leave=leave,
            deadline=resources.deadline,
        )

    def _engine(
        self,
        source: WorkSource,
        executor: "AgentLoop | ChunkingExecutor",
        deliver: Deliver,
        fit: Fit | None,
        events: EventSink | None,
        leave: Leave | None,
    ) -> Engine:
        resources = self._resources
        config = EngineConfig(
            source,
            executor,
            resources.store,
            resources.admission,
            deliver,
            self._spec.max_dispatched,
            leave,
            fit,
            None if isinstance(executor, AgentLoop) else executor.complete,
            events,
            settles=resources.cluster is None,  # a worker writes the completion of an agent after its facts
            deadline=resources.deadline,
        )
        return Engine(config)

    def _fit(self) -> Fit | None:
        window, layout = self._resources.window, self._resources.plan.layout
        if window is None:
            return None
        if self._spec.context.oversized == "refuse":
            return window.fit
        return input_chunker.InputChunker(window, layout.task, layout.template.fields).fit

    def _warmup(self) -> PrefixWarmup | None:
        resources, wanted = self._resources, self._spec.prefix.warm_prefix
        config, lead, total = resources.plan.config, resources.plan.layout.lead, resources.agents
        if wanted is None:
            several = total is None or total > 1
            is_managed = resources.backend.traits.managed_cache
            wanted = is_managed and several and prefix_chars(config.prompt) + len(lead) >= _WORTH_WARMING
        if not wanted or self._spec.lane == "batch":
            return None
        return PrefixWarmup(resources.backend, config, resources.setup.notify, self._spec.timeouts.turn, lead)

    def _started(self, total: int | None, prices: Prices | None) -> RunStarted:
        traits, limit = self._resources.server.traits, self._resources.admission.slots.limit
        plan = self._resources.plan
        described = description.describe_run(self._spec, plan)
        return RunStarted(traits.name, plan.config.model, limit, total, traits.detected, prices, described)
