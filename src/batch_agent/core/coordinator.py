"""Seams of a distributed run: the coordinator (leases, fenced writes, documents, updates) and shared tool calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from .agent_config import Job
from .facts import Fact
from .fast_dataclass import dataclass
from .images import ImageRef
from .messages import ToolSource
from .requests import Usage
from .results import AgentError


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of an agent: a worker may run it for as long as it renews the lease."""

    job: Job
    """Its input has been through JSON."""
    token: int
    """Fencing token, larger than that of any earlier lease. Every write carries it; a stale one is refused."""
    facts: tuple[Fact, ...] = ()
    """Facts of the agent so far."""
    attempts: int = 1
    """Number of leases that were not released. It exposes an agent that kills its workers."""


@dataclass(frozen=True, slots=True)
class Completion:
    """End of an agent, with its error if it failed. Its answer is in its facts."""

    key: str
    error: AgentError | None = None
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class RejectedInput:
    """Input whose agent was not started, and why."""

    index: int
    data: bytes
    """JSON; empty for an input that has no JSON form."""
    error: AgentError


@dataclass(frozen=True, slots=True)
class Append:
    """Write of one more fact. Chunks of a long input have keys that begin with their agent's key and a dot: they belong
    to its lease."""

    key: str
    token: int
    fact: Fact


@dataclass(frozen=True, slots=True)
class Replace:
    """Write that replaces all facts of the agent."""

    key: str
    token: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Write that ends the agent and its lease."""

    token: int
    completion: Completion

    @property
    def key(self) -> str:
        return self.completion.key


Write = Append | Replace | End


@dataclass(frozen=True, slots=True)
class Document:
    """Small document that all workers read and change."""

    data: bytes | None
    """None if it was never written."""
    now: float
    """Time by the coordinator's clock: the clocks of workers differ."""


Cursor = tuple[str, ...]
"""Position in the stream of updates."""


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates since a cursor."""

    after: Cursor
    """Where the next poll begins."""
    completions: tuple[Completion, ...] = ()
    completed_calls: tuple[str, ...] = ()
    """Names of calls that have an outcome, or that another worker may claim now."""
    published: tuple[bytes, ...] = ()
    """Messages that workers published."""


class Coordinator(Protocol):
    """Coordination service of one run, used by workers in other processes and on other machines.

    Every method raises StoreError if the service cannot be reached, after some retries. All methods are idempotent: a
    call that is repeated because its reply was lost has no second effect."""

    is_durable: bool
    """Whether it keeps the run for readers by itself. Otherwise its checkpoint directory does, if it has one."""

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def delete_run(self) -> None:
        """Deletes everything about this run."""
        ...

    # Documents

    async def read(self, name: str) -> Document: ...

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        """Replaces `old` with `new` atomically; False, without any change, if the document is not `old`. None stands
        for no document."""
        ...

    # Work

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        """Queues jobs. Agents that are known already stay as they are; with `retry_failed`, failed ones are queued
        again. Returns the completions of agents that need no work."""
        ...

    async def save_run(self, inputs: Sequence[bytes], prices: tuple[float, ...] | None) -> None:
        """Keeps all inputs of the run as JSON (empty for one that has no JSON form), and the prices of its model, for
        readers. They replace those of an earlier run."""
        ...

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        """As `save_run`, for inputs that the submitter rejects."""
        ...

    async def pending_count(self) -> int:
        """Number of agents that were submitted and have not ended."""
        ...

    async def lease(self, worker: str, max_jobs: int, *, ttl: float, wait: float, parts: float = 1) -> list[Lease]:
        """Leases up to `max_jobs` agents that are queued or whose leases have expired, each for `ttl` seconds: at least
        one, and at most one of `parts` equal parts of the agents that have not ended. Waits up to `wait` seconds for
        one; then the list is empty."""
        ...

    async def renew(self, worker: str, tokens: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        """Reports that the worker is alive and renews these leases. Returns the keys that other workers hold now."""
        ...

    async def release(self, worker: str, tokens: Mapping[str, int]) -> None:
        """Returns these agents, which the worker does not run: other workers may lease them at once."""
        ...

    async def leave(self, worker: str) -> None:
        """Removes the worker. Other workers may take the agents and calls that it still holds at once."""
        ...

    async def facts(self, key: str) -> tuple[Fact, ...]:
        """Facts of an agent, or of one of its chunks; empty if it is unknown."""
        ...

    async def fact_lists(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        """As `facts`, for several."""
        ...

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        """Applies the writes in order; they are durable on return. `number`: 1, 2, 3 ... for each worker; a number that
        was applied before is skipped. Returns the keys whose writes were refused because their tokens are stale."""
        ...

    async def spent(self) -> Usage:
        """Usage of all replies together, including those of refused writes and deleted facts."""
        ...

    # Updates

    async def position(self, *, completions: bool = True) -> Cursor:
        """Current end of the updates. `completions`: False for a worker, which completions and the messages of other
        workers need not wake up; it may get them all the same."""
        ...

    async def poll(self, after: Cursor, *, wait: float) -> Updates:
        """All updates since `after`; waits up to `wait` seconds for the first one."""
        ...

    async def publish(self, data: bytes, *, to_workers: bool = True) -> None:
        """Publishes a message to all clients that poll; `to_workers`: False if only submitters need it. Old messages
        may be dropped before a client reads them."""
        ...

    # Calls

    async def claim(self, name: str, worker: str) -> bytes | bool:
        """Outcome of a call, if there is one. True: the worker has claimed the call and makes it, for as long as it is
        alive. False: another worker is making it; an update names the call when it is completed."""
        ...

    async def complete_call(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
        """Stores the outcome of a claimed call for `ttl` seconds (inf: as long as the run). None: there is no outcome,
        and another worker may claim the call. Does nothing for a worker that has lost the claim."""
        ...

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float:
        """Reserves the next slot of a rate limit of one call per `interval` seconds; a call that comes up to `ahead`
        seconds early need not wait. Returns the seconds to wait."""
        ...

    async def acquire_permit(self, name: str, worker: str, limit: int) -> bool:
        """Counts one more of at most `limit` executions of all workers together, for as long as the worker is alive.
        False: there are so many; the update `permit_update(name)` follows when the next has ended."""
        ...

    async def release_permit(self, name: str, worker: str) -> None:
        """The execution has ended."""
        ...


def permit_update(name: str) -> str:
    """Name of the update that a permit was released, among those of completed calls."""
    return f"permit:{name}"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Outcome of one execution of a tool call."""

    content: str
    is_error: bool
    seconds: float
    """Duration of the execution."""
    ttl: float
    """Seconds for which later callers may get it; 0: only callers that are waiting already."""
    timed_out: bool = False
    """The execution timed out. Other processes do not get this outcome: they have timeouts of their own."""
    images: tuple[ImageRef, ...] = ()
    """Images in files, which other processes read too."""


@dataclass(frozen=True, slots=True)
class SharedRank:
    """Place of a reference in the order that all processes of a run use."""

    rank: int
    is_elsewhere: bool
    """Another process asked for it before."""


class SharedCalls(Protocol):
    """Tool calls that are made once for all processes of a run, and rate limits that they keep together. If the
    coordinator cannot be reached, each process works on its own: nothing here fails because of that."""

    async def call(self, name: str, make: Callable[[], Awaitable[CallOutcome]]) -> tuple[CallOutcome, ToolSource]:
        """Outcome of the call of this name: made here, by another process while this one waited, or earlier. The
        execution may have begun at any time before. Raises what `make` raises."""
        ...

    async def rank(self, heading: str) -> SharedRank | None:
        """Rank of a reference, the same in all processes. None if the coordinator cannot be reached."""
        ...

    async def reserve_rate(self, name: str, *, interval: float, ahead: float) -> float | None:
        """As `Coordinator.reserve_rate`; None if the coordinator cannot be reached: the caller keeps a rate of its
        own."""
        ...

    async def acquire_permit(self, name: str, limit: int) -> Callable[[], None] | None:
        """Waits until fewer than `limit` processes execute the tool of this name, each counted as often as it does.
        Returns what to call at the end of the execution; None if the coordinator cannot be reached."""
        ...
