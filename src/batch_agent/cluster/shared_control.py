"""Control of a distributed run: a document with the user's changes, which all processes of the run apply."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from typing import Any, Protocol

from ..core.coordinator import Coordinator, Document, Documents, Updates
from ..core.errors import SpecError, StoreError
from ..core.events import Steered
from ..core.fast_dataclass import dataclass
from ..core.json import dumps, loads
from ..core.options import SpendingLimits
from ..core.options.control_request import ControlRequest, KeptControls
from ..core.protocols.event_sink import EventSink
from ..core.protocols.store import Control
from .document_change import change
from .membership import Membership
from .presence import ClientPresence
from .shared_budget import shared_spending
from .shared_limits import workers_of

_log = logging.getLogger("batch_agent")
CONTROL = "control"
"""Name of the document."""
_CHANGED = b"control"
"""Message that the document has changed."""
_OF_PROCESSES = ("max_inflight", "pause")
"""Options that last only while processes work on the run."""


@dataclass(frozen=True, slots=True)
class SharedChange:
    """One change to a distributed run."""

    number: int
    """1, 2, 3 ... in the order of the changes."""
    control: Control
    steered: Steered
    """Shown in the log and the report."""


@dataclass(frozen=True, slots=True)
class SharedControls:
    """All changes to a distributed run, and the options it was started with."""

    given: Mapping[str, float | None]
    """Options of the submitter: `max_inflight`, `max_usd`, `deadline`, `samples`; and the number of its `inputs`."""
    began: float
    """Start of the submitter, by the coordinator's clock."""
    is_flow: bool = False
    changes: tuple[SharedChange, ...] = ()
    last_number: int = 0
    callers: tuple[str, ...] = ()
    """Submitters that accept added inputs."""

    def value(self, name: str) -> Any:
        """The current value of an option: the last change, or as given."""
        found = [each.control.value for each in self.changes if each.control.name == name]
        return found[-1] if found else self.given.get(name)

    def kept(self, given: SpendingLimits) -> KeptControls:
        """Like `KeptControls.of`, for a process with these options. Leaves out additions, which are recorded
        elsewhere."""
        return KeptControls.of([each.control for each in self.changes if each.control.name != "add"], given)

    def additions(self, after: int = 0) -> list[SharedChange]:
        """Changes that add inputs, after the change with this number."""
        return [each for each in self.changes if each.control.name == "add" and each.number > after]

    @property
    def inputs(self) -> int | None:
        """Number of inputs, including added ones; None if unknown."""
        own = self.given.get("inputs")
        return None if own is None else int(own) + sum(each.control.value[1] for each in self.additions())

    def with_caller(self, name: str) -> "SharedControls":
        return replace(self, callers=(*self.without_caller(name).callers, name))

    def without_caller(self, name: str) -> "SharedControls":
        return replace(self, callers=tuple(each for each in self.callers if each != name))

    def time_left(self, deadline: float, now: float) -> float:
        return self.began + deadline - now

    def with_changes(self, made: Iterable[tuple[Control, Steered]]) -> "SharedControls":
        added = tuple(SharedChange(self.last_number + at, *each) for at, each in enumerate(made, start=1))
        return replace(self, changes=(*self.changes, *added), last_number=self.last_number + len(added))

    def encode(self) -> bytes:
        changes = [(each.number, *astuple(each.control), *astuple(each.steered)) for each in self.changes]
        return dumps([dict(self.given), self.began, self.is_flow, self.last_number, changes, self.callers])

    @classmethod
    def decode(cls, data: bytes | None) -> "SharedControls | None":
        """Returns None without a document: no submitter of this version has started. Raises StoreError."""
        if data is None:
            return None
        try:
            given, began, is_flow, last_number, changes, *more = loads(data)
            decoded = tuple(
                SharedChange(number, Control(name, value, was), Steered(*shown))
                for number, name, value, was, *shown in changes
            )
            return cls(given, began, is_flow, decoded, last_number, tuple(more[0]) if more else ())
        except (ValueError, TypeError) as error:
            raise StoreError(
                "The changes of the run cannot be read. All processes of a run need the same version of batch_agent."
            ) from error


async def read_controls(documents: Documents) -> tuple[SharedControls | None, float]:
    """The changes to a run, and the current time by the coordinator's clock. Raises StoreError."""
    document = await documents.read(CONTROL)
    return SharedControls.decode(document.data), document.now


async def is_active(documents: Documents) -> bool:
    """Whether any process submits inputs to the run or works on it. Raises StoreError."""
    return await ClientPresence(documents, ttl=0.0).any_present() or bool(await workers_of(documents))


async def begin_controls(documents: Documents, given: Mapping[str, float | None], *, is_flow: bool) -> None:
    """Records the options of a submitter, before it shares limits. If no other process works on the run, drops earlier
    changes that last only while processes do. Raises StoreError."""
    is_alone = not await is_active(documents)

    async def edit(document: Document) -> bytes | None:
        known = SharedControls.decode(document.data)
        if known is None:
            return SharedControls(given, document.now, is_flow).encode()
        if not is_alone:
            return None
        lasting = tuple(each for each in known.changes if each.control.name not in _OF_PROCESSES)
        begun = replace(known, given=given, began=document.now, is_flow=is_flow, changes=lasting, callers=())
        return begun.encode()

    await change(documents, CONTROL, edit)


async def change_run(
    coordinator: Coordinator, request: ControlRequest, cancelled: Mapping[str, Steered], added: Control | None = None
) -> list[Steered]:
    """Records the changes and notifies all processes of the run. `cancelled`: agents to cancel, by key. `added`:
    recorded inputs to add. Raises SpecError if the run refuses them, and StoreError."""
    documents = coordinator.documents
    made: list[tuple[Control, Steered]] = []
    spent = 0.0 if request.max_usd is None else (await shared_spending(documents)).usd
    has_caller = added is None or await ClientPresence(documents, ttl=0.0).any_present()

    async def edit(document: Document) -> bytes:
        known = SharedControls.decode(document.data)
        if known is None:
            raise StoreError("The run has been deleted meanwhile.")
        made[:] = [
            *_limits(known, request, document.now, spent),
            *((Control("cancel", k), s) for k, s in cancelled.items()),
            *(() if added is None else [(added, _addition(known, added, has_caller=has_caller))]),
        ]
        return known.with_changes(made).encode()

    await change(documents, CONTROL, edit)
    await coordinator.updates.publish(_CHANGED)
    return [steered for _, steered in made]


def _limits(known: SharedControls, request: ControlRequest, now: float, spent: float) -> list[tuple[Control, Steered]]:
    if request.max_usd is not None and known.given.get("max_usd") is None:
        raise SpecError(
            "The run was started without max_usd, so it does not count dollars. Stop the process that submitted it "
            f"and its workers, and run it again with max_usd={request.max_usd:g}: what it has spent counts."
        )
    made = []
    if request.max_inflight is not None:
        was = known.value("max_inflight")
        shown = Steered("max_inflight", "adaptive" if was is None else f"{was:,}", f"{request.max_inflight:,}")
        made.append((Control("max_inflight", request.max_inflight), shown))
    if request.max_usd is not None:
        shown = Steered("max_usd", f"{known.value('max_usd'):g}", f"{request.max_usd:g} ({spent:.4g} spent)")
        made.append((Control("max_usd", request.max_usd, known.given["max_usd"]), shown))
    if request.deadline is not None:
        was, left = known.value("deadline"), max(0.0, known.time_left(request.deadline, now))
        shown = Steered(
            "deadline", "none" if was is None else f"{was:g} s", f"{request.deadline:g} s ({left:.0f} s left)"
        )
        made.append((Control("deadline", request.deadline, known.given.get("deadline")), shown))
    if request.pause is not None:
        shown = Steered("pause", _yes_or_no(known.value("pause")), _yes_or_no(request.pause))
        made.append((Control("pause", request.pause), shown))
    return made


def _addition(known: SharedControls, added: Control, *, has_caller: bool) -> Steered:
    """Raises SpecError."""
    if known.is_flow:
        raise SpecError("Inputs cannot be added to a run with stages or several models: start another run.")
    if not known.callers:
        raise SpecError("The run takes no inputs now: it is starting or ending. Add them later, or to its next run.")
    count, total = added.value[1], known.inputs
    before, after = ("unknown", f"{count:,} more") if total is None else (f"{total:,}", f"{total + count:,}")
    later = "" if has_caller else " (when the run is resumed: it has no caller)"
    return Steered("inputs", before, f"{after}{later}", count * int(known.given.get("samples") or 1))


def _yes_or_no(value: bool | None) -> str:
    return "yes" if value else "no"


UpdateInputs = Callable[[SharedControls], Awaitable[None]]


class Apply(Protocol):
    """Applies changes in this process."""

    def __call__(self, request: ControlRequest, *, time_left: float | None) -> object:
        """`time_left`: seconds until the deadline; None without one."""
        ...


class ControlFollower:
    """Applies a run's changes in one process, and reports each change once."""

    def __init__(
        self,
        given: SpendingLimits,
        apply: Apply,
        cancel: Callable[[str], None],
        events: EventSink | None,
        known: SharedControls | None,
    ) -> None:
        """`known`: the changes at the start of this process, which has already applied their `max_usd` and
        `deadline`."""
        kept = KeptControls.of((), given) if known is None else known.kept(given)
        self._given = given
        self._apply = apply
        self._cancel = cancel
        self._events = events
        self._limits = kept.max_usd, kept.deadline
        self._cancelled = set[str]()
        self._max_inflight: int | None = None
        self._is_paused = False
        self._reported = 0 if known is None else known.last_number

    def update(self, controls: SharedControls, now: float) -> None:
        """Brings this process to the current state of the run, whatever it has applied before."""
        kept = controls.kept(self._given)
        max_usd, deadline = self._limits
        max_inflight = next((e.control.value for e in controls.changes[::-1] if e.control.name == "max_inflight"), None)
        is_paused = bool(controls.value("pause"))
        request = ControlRequest(
            max_inflight if max_inflight != self._max_inflight else None,
            kept.max_usd if kept.max_usd != max_usd else None,
            kept.deadline if kept.deadline != deadline else None,
            is_paused if is_paused != self._is_paused else None,
        )
        self._limits = kept.max_usd, kept.deadline
        self._max_inflight, self._is_paused = max_inflight, is_paused
        self._apply(request, time_left=None if kept.deadline is None else controls.time_left(kept.deadline, now))
        for key in kept.cancelled:
            if key not in self._cancelled:
                self._cancelled.add(key)
                self._cancel(key)
        for each in controls.changes:
            if each.number > self._reported:
                self._reported = each.number
                _log.info("Steered: %s", each.steered)
                if self._events is not None:
                    self._events.emit(each.steered)


@asynccontextmanager
async def follow_controls(
    documents: Documents, member: Membership, follower: ControlFollower, update_inputs: UpdateInputs | None = None
) -> AsyncIterator[None]:
    """Applies the run's changes so far, and further ones while the block runs. `update_inputs`: takes added inputs.
    Raises StoreError."""
    changed = asyncio.Event()
    member.on_updates(lambda updates: changed.set() if is_control(updates) else None)
    update = partial(_update, documents, follower, update_inputs)
    await update()
    following = asyncio.get_running_loop().create_task(_follow(update, changed, member.ttl))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])


def is_control(updates: Updates) -> bool:
    """Whether the updates announce changes to the run."""
    return _CHANGED in updates.published


async def _follow(update: Callable[[], Awaitable[None]], changed: asyncio.Event, interval: float) -> None:
    while True:  # until it is cancelled with the run
        with suppress(TimeoutError):  # a message may be lost
            async with asyncio.timeout(interval):
                await changed.wait()
        changed.clear()
        try:
            await update()
        except StoreError as error:  # retried
            _log.debug("The changes of the run could not be read: %s", error)


async def _update(documents: Documents, follower: ControlFollower, update_inputs: UpdateInputs | None) -> None:
    controls, now = await read_controls(documents)
    if controls is not None:
        follower.update(controls, now)
        if update_inputs is not None:
            await update_inputs(controls)
