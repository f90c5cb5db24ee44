"""Observer of a distributed run: a process that shows the workers' progress without taking part."""

from collections.abc import Callable, Collection, Iterable, Sequence

from ..core.coordinator import Completion, Coordinator, Cursor, Documents, FactTable
from ..core.events import AgentFinished, RunStarted
from ..core.facts import Fact
from ..core.protocols.event_sink import EventSink
from ..core.results import AgentResult
from .events.relay import EventRelay
from .membership import worker_name
from .shared_control import is_active, is_control, read_controls

_POLL_WAIT = 5.0

Rebuild = Callable[[str, Sequence[Fact]], AgentResult | None]
"""Rebuilds the result of an agent from its key and facts; None if the agent has not ended."""


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
    """Emits the known results, then the events of all workers and the results of their agents, until no process works
    on the run. `after`: a position taken before the known results were read. `follows`: False to emit only the known
    results. Raises StoreError."""
    relay = EventRelay(coordinator.updates, worker_name(), events)
    async with relay.open():
        relay.emit(started)
        seen = set[str]()
        for result in known:
            seen.add(result.key)
            relay.emit(AgentFinished(result, resumed=True))
        steered = await _emit_changes(coordinator.documents, relay, 0)
        while follows and await is_active(coordinator.documents):
            updates = await coordinator.updates.poll(after, wait=_POLL_WAIT)
            after = updates.after
            if is_control(updates):
                steered = await _emit_changes(coordinator.documents, relay, steered)
            relay.on_messages(updates.published)
            await _emit_results(coordinator.facts, updates.completions, seen, relay, rebuild)


async def _emit_changes(documents: Documents, relay: EventRelay, last: int) -> int:
    """Emits the user's changes to the run after the change with this number, and returns the number of the last one."""
    controls, _ = await read_controls(documents)
    if controls is None:
        return last
    for each in controls.changes:
        if each.number > last:
            relay.emit(each.steered)
    return controls.last_number


async def _emit_results(
    table: FactTable, ended: Collection[Completion], seen: set[str], relay: EventRelay, rebuild: Rebuild
) -> None:
    for completion in ended:
        if completion.key not in seen:
            result = rebuild(completion.key, facts) if (facts := await table.read(completion.key)) else None
            if result is not None:
                seen.add(completion.key)
                relay.emit(AgentFinished(result, resumed=False))
