"""Control of a live run: applies what its user changes while it is running."""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

from ..aio import Deadlines, RunDeadline
from ..core.errors import SpecError
from ..core.events import Steered
from ..core.facts import failure_of
from ..core.fast_dataclass import dataclass
from ..core.json import dumps, loads
from ..core.options import SpendingLimits
from ..core.options.control_request import ControlRequest, KeptControls
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Control, KeepsControls, Store
from ..engine.admission import AdmissionController
from ..engine.budget_pool import BudgetPool
from ..engine.engine import Engine, RunEnding
from ..engine.job_source import InputSource, JobSource
from ..engine.slots import Slots
from ..lazy_imports import lazy_modules
from ..plan.compile import Plan
from ..plan.row_keys import agent_names, check_row_keys, row_id, row_key
from ..plan.template import BadInput
from .setup import input_order

with lazy_modules(globals()):
    from ..observe import checkpoint_results

_log = logging.getLogger("batch_agent")
_UNLIMITED = float("inf")


def inputs_to_add(inputs: Any) -> tuple[Any, ...]:
    """Inputs of any source as JSON data. Raises SpecError for other values, and for no inputs."""
    if isinstance(inputs, AsyncIterable):
        raise SpecError("Inputs to add are read at once: an async iterable cannot be added. Pass a list.")
    values = tuple(inputs)
    if not values:
        raise SpecError("There are no inputs to add.")
    for at, value in enumerate(values):
        try:
            is_same = loads(dumps(value)) == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same:
            raise SpecError(
                f"Input {at} to add must be JSON data: the checkpoint keeps it. Got {type(value).__name__}."
            )
    return values


@dataclass(frozen=True, slots=True)
class _ControlledRun:
    """A run whose agents are running."""

    engine: Engine
    source: InputSource
    inputs: JobSource
    plan: Plan
    samples: int
    key_field: str | None


class _ControlledStore(Store, KeepsControls, Protocol):
    """Store of a run that can be changed."""


class LiveSettings:
    """Settings of the agents in this process that can change during a run: limits, budget, deadline, pause and
    cancelled agents."""

    def __init__(
        self,
        deadline: RunDeadline,
        pool: BudgetPool | None,
        admissions: Sequence[AdmissionController],
        cancelled: Iterable[str] = (),
    ) -> None:
        """`pool`: the budget of the run, if it has one; `cancelled`: keys of agents that are not started."""
        self._deadline = deadline
        self._pool = pool
        self._admissions = admissions
        self._cancelled = dict.fromkeys(cancelled)
        self._engines: list[Engine] = []
        self._agent_times: list[Deadlines] = []

    @property
    def max_usd(self) -> float:
        """Infinite if dollars are not counted."""
        return _UNLIMITED if self._pool is None else self._pool.budget.limit.usd

    def attach(self, engine: Engine) -> None:
        """The agents of this engine are about to be run."""
        self._engines.append(engine)
        self._deadline.observe(lambda _: engine.on_deadline_moved(self._deadline))
        for key in self._cancelled:
            engine.cancel(key)

    def observe_agent_time(self, times: Deadlines) -> None:
        """Makes these time limits of agents follow the deadline, and stop during a pause."""
        self._agent_times.append(times)
        self._deadline.observe(times.set_until)
        if any(each.is_held for each in self._slots):
            times.hold()

    def expect(self, agents: int) -> None:
        """Adds to the number of agents that are expected."""
        for admission in self._admissions:
            admission.expect(agents)

    def cancel(self, key: str) -> None:
        """Cancels an agent, running or not started."""
        self._cancelled[key] = None
        for engine in self._engines:
            engine.cancel(key)

    @property
    def _slots(self) -> list[Slots]:
        return list({id(each.slots): each.slots for each in self._admissions}.values())

    def set(self, request: ControlRequest, *, time_left: float | None = None) -> list[Steered]:
        """Changes limits. `time_left`: seconds to the new deadline, if the run began in another process."""
        changes, slots = [], self._slots
        if request.max_inflight is not None:
            before = max(each.highest_limit for each in slots)
            for each in slots:
                each.set_highest_limit(request.max_inflight)
            changes.append(Steered("max_inflight", f"{before:,}", f"{request.max_inflight:,}"))
        if request.max_usd is not None and self._pool is not None:
            before_usd = self._pool.budget.limit.usd
            self._pool.set_max_usd(request.max_usd)
            spent = f"{request.max_usd:g} ({self._pool.budget.usd:.4g} spent)"
            changes.append(Steered("max_usd", f"{before_usd:g}", spent))
        if request.deadline is not None:
            before_at, elapsed = self._deadline.seconds, self._deadline.elapsed
            self._deadline.set(request.deadline, time_left)
            left = f"{request.deadline:g} s ({max(0.0, request.deadline - elapsed):.0f} s left)"
            changes.append(Steered("deadline", "none" if before_at is None else f"{before_at:g} s", left))
        if request.pause is not None:
            was_held = any(each.is_held for each in slots)
            for each in slots:
                each.hold(is_held=request.pause)
            for times in self._agent_times:
                times.hold() if request.pause else times.go_on()
            changes.append(Steered("pause", _yes_or_no(was_held), _yes_or_no(request.pause)))
        return changes


class RunControl:
    """Applies what the user changes of a live run, or of all stages of a flow. A change is recorded in the checkpoint
    before it is made."""

    def __init__(
        self,
        store: _ControlledStore,
        given: SpendingLimits,
        kept: KeptControls,
        live: LiveSettings,
        events: EventSink | None,
        *,
        is_flow: bool,
    ) -> None:
        """`store`: where changes are recorded; `given`: the options of this run."""
        self.kept = kept
        self._added_inputs = list(kept.added)
        self._store = store
        self._given = given
        self._live = live
        self._events = events
        self._is_flow = is_flow
        self._run: _ControlledRun | None = None
        self._on_added: list[Callable[[int], None]] = []
        self._lock = asyncio.Lock()

    def attach(self, engine: Engine, source: InputSource, inputs: JobSource, plan: Plan, samples: int) -> None:
        """The agents of these inputs are about to be run, with those of earlier changes."""
        if not self._is_flow:
            key_field = plan.question.get("key")
            self._run = _ControlledRun(engine, source, inputs, plan, samples, key_field)
            source.add(self.kept.added)

    def observe_added(self, on_added: Callable[[int], None]) -> None:
        """Registers a callback that receives the number of added agents."""
        self._on_added.append(on_added)

    async def apply(self, request: ControlRequest) -> list[Steered]:
        """Makes all changes, or none. Raises BatchAgentError, with the reason."""
        request.check()
        async with self._lock:  # requests are applied one after the other
            cancelled = [await self._find(wanted) for wanted in request.cancel]
            self._check(request)
            controls = self._controls(request, cancelled)
            if request.add:
                await self._add(request.add, controls)
            elif controls:
                await self._store.save_controls(controls)
            changes = [*self._live.set(request), *self._cancel(cancelled), *self._added(request.add)]
        for change in changes:
            _log.info("Steered: %s", change)
            if self._events is not None:
                self._events.emit(change)
        return changes

    def _check(self, request: ControlRequest) -> None:
        """Raises SpecError for what this run cannot do."""
        if request.max_usd is not None and self._live.max_usd == _UNLIMITED:
            raise SpecError(
                "The run was started without max_usd, so it does not count dollars. Stop it with Ctrl-C, and resume it "
                f"with max_usd={request.max_usd:g}: what it has spent counts."
            )
        if request.add:
            self._check_added(request.add)

    def _check_added(self, values: Sequence[Any]) -> None:
        run = self._run
        if self._is_flow:
            raise SpecError("Inputs cannot be added to a run with stages or several models: start another run.")
        if run is None:
            raise SpecError("The run is starting, or it runs only some of its inputs: add inputs later.")
        for at, value in enumerate(values):
            try:
                run.plan.layout.template.cells(value)
                if run.key_field is not None:
                    row_id(value, run.key_field)
            except (BadInput, ValueError) as error:
                raise SpecError(f"Input {at} to add does not fit the task: {error}. None was added.") from None
        if run.key_field is not None and run.inputs.rows is not None:
            check_row_keys(chain(run.inputs.rows, self._added_inputs, values), run.key_field)

    def _controls(self, request: ControlRequest, cancelled: Sequence["_Target"]) -> list[Control]:
        options = [("max_usd", request.max_usd), ("deadline", request.deadline)]
        controls = [Control(name, value, getattr(self._given, name)) for name, value in options if value is not None]
        controls += [Control("cancel", target.key) for target in cancelled]
        return controls + ([Control("add", list(request.add))] if request.add else [])

    async def _find(self, wanted: str) -> "_Target":
        """The agent to cancel. Raises SpecError if there is none, or it has ended."""
        run = self._run
        if run is None:
            raise SpecError(
                "Agents of a run with stages or several models cannot be cancelled one by one."
                if self._is_flow
                else "The run is starting: cancel agents later."
            )
        if found := run.engine.running(lambda job: wanted in agent_names(job)):
            return _Target(found[0].key, "running")
        key = await asyncio.to_thread(self._find_key, run, wanted)
        facts = await self._store.facts(key)
        if run.engine.running(lambda job: job.key == key):
            return _Target(key, "running")
        if not facts:
            return _Target(key, "not started")
        result = checkpoint_results.recorded_result(run.plan.config, key, facts)
        if result is None:
            return _Target(key, "interrupted")
        if result.ok or failure_of(facts) is None:
            raise SpecError(f"Agent {row_key(key)} has ended: it cannot be cancelled any more.")
        return _Target(key, "failed")

    def _find_key(self, run: "_ControlledRun", wanted: str) -> str:
        """The key of an input that has this key, index or beginning of a key. Raises SpecError."""
        rows = run.inputs.rows
        if rows is None:
            raise SpecError(f"No agent {wanted!r} is running. Inputs are read lazily: others cannot be cancelled.")
        values = [*rows, *self._added_inputs]
        order = [*(input_order(run.plan.layout, run.inputs) or range(len(rows))), *range(len(rows), len(values))]
        at = _index_of(wanted, values, run.key_field)
        if at is not None:  # copies of an input are numbered in the order in which they run
            first = order.index(at)
            copies = [values[at] for other in order[:first] if values[other] == values[at]]
            found = list(run.plan.keys([*copies, values[at]]))[-1:]
        else:
            found = [key for key in run.plan.keys(values[at] for at in order) if key and key.startswith(wanted)]
        if len(found) == 1 and found[0] is not None:
            return found[0]
        many = f"{len(found):,} agents begin with" if len(found) > 1 else "There is no agent"
        raise SpecError(f"{many} {wanted!r}: give the index or the whole key of one.")

    def _cancel(self, targets: Sequence["_Target"]) -> list[Steered]:
        changes = []
        for target in targets:
            self._live.cancel(target.key)
            changes.append(Steered(f"agent {row_key(target.key)}", target.state, "cancelled"))
        return changes

    async def _add(self, values: Sequence[Any], controls: Sequence[Control]) -> None:
        run = self._run
        assert run is not None
        total = run.source.total

        async def record() -> None:
            await self._store.save_controls(controls, None if total is None else total // run.samples)
            run.source.add(values)
            self._added_inputs.extend(values)

        try:
            await run.engine.extend(record)
        except RunEnding:
            raise SpecError("The run is ending: resume it with these inputs added to its own.") from None

    def _added(self, values: Sequence[Any]) -> list[Steered]:
        run = self._run
        if run is None or not values:
            return []
        agents, total = len(values) * run.samples, run.source.total
        self._live.expect(agents)
        for on_added in self._on_added:
            on_added(agents)
        after = None if total is None else total // run.samples
        before = "unknown" if after is None else f"{after - len(values):,}"
        return [Steered("inputs", before, f"{len(values):,} more" if after is None else f"{after:,}", agents)]


@dataclass(frozen=True, slots=True)
class _Target:
    """An agent to cancel."""

    key: str
    state: str


def _index_of(wanted: str, values: Sequence[Any], key_field: str | None) -> int | None:
    """The index of the input that the user means, by its row's key or by the index itself."""
    if key_field is not None:
        for at, value in enumerate(values):
            with suppress(ValueError):  # a row without a key
                if row_id(value, key_field) == wanted:
                    return at
    return int(wanted) if wanted.isdecimal() and int(wanted) < len(values) else None


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
