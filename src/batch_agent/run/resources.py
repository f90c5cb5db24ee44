"""Runs made ready, to go side by side: whatever they can share is opened once."""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ..core.errors import BackendError, SpecError
from ..core.events import ToolsUsed
from ..core.hub import Hub
from ..core.interfaces import Backend, EventSink, HasEndpoints, Store, Toolbox
from ..core.quick import dataclass
from ..core.requests import NO_USAGE
from ..core.scheduling import Scheduling
from ..core.sharing import PrefixReport
from ..core.spec import BatchSpec
from ..engine.collector import rarer_collections
from ..engine.gate import Gate
from ..engine.opening import open_gate
from ..engine.sampling import sampling
from ..engine.summarizer import Summarizer
from ..engine.upkeep import upkeep
from ..plan.compile import prefix_chars
from ..schedule.health import Health
from ..store.memory import NoStore
from ..tasks.run_deadline import RunDeadline
from ..tools import Selection, ToolFabric, open_tools, toolsets
from .budget import Payment
from .complete_checkpoint import ReadOnlyStore, as_recorded, finished, unmarked
from .plan_check import check_plan, is_same_question
from .setup import LaidOut, Openings, Preparation, Prepared

if TYPE_CHECKING:
    from ..cluster.joined import Joined

_ON_THIS_MACHINE = re.compile(r"^local://|//(?:[^/@]*@)?(?:localhost|127\.|\[::1\])")
_PATIENCE_PER_RETRY = 5.0
"""Seconds for which a backend that is gone is waited for, for each retry that the user allows."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that can begin. What it shares with others is theirs too: the way to the backend, tools, a budget."""

    preparation: Preparation
    prepared: Prepared
    store: Store
    backend: Backend
    gate: Gate
    health: Health
    tools: Toolbox
    summarizer: Summarizer
    deadline: RunDeadline
    events: EventSink | None = None
    """Who hears what happens in it."""
    joined: "Joined | None" = None
    """Set where the work is shared with other processes."""

    @property
    def scheduling(self) -> Scheduling:
        """How the run has been scheduled so far."""
        server = self.prepared.server
        return replace(self.gate.report(), unavailable=server.unavailable() if isinstance(server, HasEndpoints) else ())


@asynccontextmanager
async def open_runs(
    preparations: Sequence[Preparation],
    laid_out: Sequence[LaidOut],
    events: EventSink | None,
    hub: Hub | None = None,
    *,
    deadline: RunDeadline,
    asks: bool = True,
    recorded: Sequence[Mapping[str, Any]] | None = None,
) -> AsyncIterator[list[Ready]]:
    """Later ones go first where several wait. `events` hears of what concerns all. `hub`: where a run, then the only
    one, shares its work. `recorded`: the marked plans of checkpoints that hold all results; nothing else is opened
    then. Nothing is sent but what finds out whether a server takes tools, which the budget pays for. Raises SpecError,
    BackendError and StoreError."""
    async with AsyncExitStack() as stack:
        stack.enter_context(rarer_collections())
        if isinstance(events, AbstractContextManager):
            events.__enter__()
            stack.push_async_exit(partial(_leave, events))
        joined = None if hub is None else await _join(hub, preparations[0].spec, stack, events, asks=asks)
        events = events if joined is None else joined.events
        stores: list[Store] = [joined.store if joined else await _open_store(each.spec, stack) for each in preparations]
        if recorded is not None:
            stores = list(map(ReadOnlyStore, stores))
        spend, payment = preparations[0].spec.spend, None
        if spend.counts_tokens:
            payment = await Payment.open(spend, stores, stack, joined)
        openings = Openings(preparations, stack, None if payment is None else await payment.trial(stores))
        opened: list[Prepared] = []
        for preparation, laid, store in zip(preparations, laid_out, stores, strict=True):
            with _named(preparation.stage):
                prepared: Prepared | None = None
                if recorded is not None:
                    prepared = as_recorded(preparation, laid, recorded[len(opened)])
                elif joined is None and len(preparations) == 1:
                    prepared = await finished(preparation, laid, store)
                if prepared is None:
                    prepared = await preparation.opened(laid, openings, await store.plan())
                    await _check(preparation.spec, prepared, store, joined, asks=asks)
                if payment is not None:
                    payment.price_earlier(prepared.server, preparation.spec, prepared.plan.rules.model, len(opened))
                opened.append(prepared)
        if payment is not None:
            stack.callback(payment.tell_spent, events)
        yield await _Ways(preparations, opened, stack, events, joined, payment, deadline, openings).ready(stores)


async def _leave(events: AbstractContextManager[Any], *why: Any) -> None:
    """In a thread: a report takes a while to write, and the loop may have other things to do."""
    await asyncio.to_thread(events.__exit__, *why)


class _Ways:
    """Puts the shared parts together."""

    def __init__(
        self,
        preparations: Sequence[Preparation],
        opened: Sequence[Prepared],
        stack: AsyncExitStack,
        events: EventSink | None,
        joined: "Joined | None",
        payment: Payment | None,
        deadline: RunDeadline,
        openings: Openings,
    ) -> None:
        self._openings = openings
        self._joined = joined
        self._payment = payment
        self._deadline = deadline
        self._preparations = preparations
        self._opened = opened
        self._stack = stack
        self._events = events
        self._gates: dict[Hashable, Gate] = {}
        self._healths: dict[Hashable, Health] = {}
        self._servers: Counter[str] = Counter()

    async def ready(self, stores: Sequence[Store]) -> list[Ready]:
        runs = list(zip(self._preparations, self._opened, strict=True))
        backends = [self._paid(each.spec, run) for each, run in runs]
        gates = [
            await self._gate(depth, each, run, backend)
            for depth, ((each, run), backend) in enumerate(zip(runs, backends, strict=True))
        ]
        summarizers = [
            Summarizer(backend, gate.slots, run.plan.rules.model)
            for (_, run), backend, gate in zip(runs, backends, gates, strict=True)
        ]
        if self._joined is not None:
            gates_by_server = {_server(each.spec): gate for (each, _), gate in zip(runs, gates, strict=True)}
            await self._stack.enter_async_context(self._joined.share_limits(gates_by_server))
        tools = await self._toolboxes(summarizers)
        return [
            Ready(
                each,
                run,
                stores[at],
                backends[at],
                gates[at],
                self._healths[_address(each.spec)],
                tools[at],
                summarizers[at],
                self._deadline,
                each.events if self._joined is None else self._joined.events,
                self._joined,
            )
            for at, (each, run) in enumerate(runs)
        ]

    def _paid(self, spec: BatchSpec, run: Prepared) -> Backend:
        return run.server if self._payment is None else self._payment.backend(run.server, spec)

    async def _gate(self, depth: int, each: Preparation, run: Prepared, backend: Backend) -> Gate:
        address = _address(each.spec)
        shared = prefix_chars(run.plan.rules.prompt) + len(run.layout.lead)
        known = self._gates.get(address)
        if known is not None:
            return known.beside(shared, depth)
        beside = [other for other in self._preparations if _address(other.spec) == address]
        come_back = any((other.spec.tools or other.spec.runtime) and other.spec.max_turns > 1 for other in beside)
        gate = open_gate(each.spec, backend, shared, run.chars_per_token, self._events, come_back=come_back)
        self._gates[address] = gate
        self._healths[address] = Health(each.spec.retry.max_retries * _PATIENCE_PER_RETRY)
        await self._stack.enter_async_context(upkeep(run.server, gate))
        if self._events is not None:
            name = self._server_name(run.server.traits.name)
            await self._stack.enter_async_context(sampling(gate, name, self._events))
        return gate

    def _server_name(self, name: str) -> str:
        """Another one for each server, where stages use several of a kind."""
        self._servers[name] += 1
        return name if self._servers[name] == 1 else f"{name} {self._servers[name]}"

    async def _toolboxes(self, summarizers: Sequence[Summarizer]) -> list[Toolbox]:
        needs = [(each.spec, run.tools) for each, run in zip(self._preparations, self._opened, strict=True)]
        boxes: dict[int, Toolbox] = {}
        for runs, tools in toolsets(needs):
            spec, summarizer = needs[runs[0]][0], summarizers[runs[0]]
            tasks = [str(needs[run][0].task) for run in runs]
            commons = None if self._joined is None else self._joined.calls
            fabric = await self._stack.enter_async_context(open_tools(tools, spec, summarizer.shorten, tasks, commons))
            openings = self._openings if not boxes else None  # once, for all
            used = partial(_used, fabric, [summarizers[run] for run in runs], openings)
            if fabric.names:
                self._stack.callback(self._tell, used)
                if self._joined is not None:
                    self._joined.events.telling.account = used
            boxes |= {run: Selection(fabric, needs[run][1]) for run in runs}
        return [boxes[at] for at in range(len(needs))]

    def _tell(self, used: Callable[[], ToolsUsed]) -> None:
        if self._events is not None:
            self._events.emit(used())


def _used(fabric: ToolFabric, summarizers: Sequence[Summarizer], openings: Openings | None) -> ToolsUsed:
    tried = NO_USAGE if openings is None else openings.tried
    return ToolsUsed(fabric.uses, sum((each.usage for each in summarizers), tried))


async def _join(hub: Hub, spec: BatchSpec, stack: AsyncExitStack, events: EventSink | None, *, asks: bool) -> "Joined":
    from ..cluster.joined import join  # of runs that are shared

    return await stack.enter_async_context(
        join(hub, lasts=spec.together.lease, retry_failed=spec.retry.retry_failed, events=events, asks=asks)
    )


async def _open_store(spec: BatchSpec, stack: AsyncExitStack) -> Store:
    store = _store(spec)
    await store.open()
    stack.push_async_callback(store.aclose)
    return store


def _store(spec: BatchSpec) -> Store:
    if spec.checkpoint_dir is None:
        return NoStore()
    from ..store.sqlite import SqliteStore

    return SqliteStore(spec.checkpoint_dir)


async def _check(spec: BatchSpec, prepared: Prepared, store: Store, joined: "Joined | None", *, asks: bool) -> None:
    if prepared.report.findings and spec.prefix.strict_prefix:
        raise SpecError(f"strict_prefix=True, and prompts are not shared as they are. {listed(prepared.report)}")
    rerun = spec.plan_changed == "rerun"
    plan, kept = prepared.plan.description, unmarked(await store.plan())
    if joined is not None and asks and kept not in (None, plan) and (rerun or is_same_question(kept, plan)):
        await joined.check_alone()
    await check_plan(store, plan, rerun=rerun, keeps=joined is None or asks)


def listed(report: PrefixReport) -> str:
    """What keeps prompts from being shared, in one line."""
    return " ".join(map(str, report.findings))


def _address(spec: BatchSpec) -> Hashable:
    """Runs with the same one meet at the same server."""
    return spec.backend if isinstance(spec.backend, str | tuple) else id(spec.backend)


def _server(spec: BatchSpec) -> str:
    """Workers with the same one meet at the same server. One on a loopback address is that of its own machine."""
    address = " ".join(spec.backend) if isinstance(spec.backend, tuple) else str(spec.backend)
    if _ON_THIS_MACHINE.search(address):
        address = f"{address} {socket.gethostname()}"
    return blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()  # it may hold a key


@contextmanager
def _named(stage: str) -> Iterator[None]:
    """In a flow an error says whose it is."""
    try:
        yield
    except (SpecError, BackendError) as error:
        if stage:
            error.args = (f"Stage {stage!r}: {error}", *error.args[1:])
        raise
