"""Observer of a distributed run: a process that shows what the workers do, without taking part."""

from collections.abc import Callable, Collection, Iterable, Sequence

from ..core.coordinator import Completion, Coordinator, Cursor
from ..core.events import AgentFinished, RunStarted
from ..core.facts import Fact
from ..core.protocols import EventSink
from ..core.results import AgentResult
from .events.relay import EventRelay
from .limit_sharing import workers_of
from .membership import worker_name
from .presence import ClientPresence

_POLL_WAIT = 5.0

Rebuild = Callable[[str, Sequence[Fact]], AgentResult | None]
"""The result of an agent from its key and facts; None if they have no end."""


async def is_active(coordinator: Coordinator) -> bool:
    """Whether a process submits inputs to the run, or works for it. Raises StoreError."""
    return await ClientPresence(coordinator, ttl=0.0).any_present() or bool(await workers_of(coordinator))


async def observe_run(
    coordinator: Coordinator,
    after: Cursor,
    started: RunStarted,
    known: Iterable[AgentResult],
    events: EventSink,
    rebuild: Rebuild,
    *,
    follows: bool = True,
) -> None:
    """Emits the results that are known, then the events of all workers and the results of their agents, until no
    process works on the run any more. `after`: position from before the known results were read. `follows`: False for
    the known results only. Raises StoreError."""
    relay = EventRelay(coordinator, worker_name(), events)
    async with relay.open():
        relay.emit(started)
        seen = set[str]()
        for result in known:
            seen.add(result.key)
            relay.emit(AgentFinished(result, resumed=True))
        while follows and await is_active(coordinator):
            updates = await coordinator.poll(after, wait=_POLL_WAIT)
            after = updates.after
            relay.on_messages(updates.published)
            await _emit_results(coordinator, updates.completions, seen, relay, rebuild)


async def _emit_results(
    coordinator: Coordinator, ended: Collection[Completion], seen: set[str], relay: EventRelay, rebuild: Rebuild
) -> None:
    for completion in ended:
        if completion.key not in seen:
            result = rebuild(completion.key, facts) if (facts := await coordinator.facts(completion.key)) else None
            if result is not None:
                seen.add(completion.key)
                relay.emit(AgentFinished(result, resumed=False))
