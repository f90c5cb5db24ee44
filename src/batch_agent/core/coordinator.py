"""Seam of a distributed run: the coordinator and its parts, of which a caller takes the one that it needs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from .agent_config import Job
from .facts import Fact
from .fast_dataclass import dataclass
from .options.price import PriceNumbers
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


PLAN = "plan"
"""Name of the document with the run's plan. It is as durable as the facts."""
IDENTITY = "identity"
"""Name of the document with the run's random identity, which is so too."""


class Documents(Protocol):
    """Small documents that all processes read and change."""

    async def read(self, name: str) -> Document: ...

    async def compare_and_set(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        """Replaces `old` with `new` atomically; False, without any change, if the document is not `old`. None stands
        for no document."""
        ...


class InputRecord(Protocol):
    """Inputs of the run, for readers."""

    async def save(self, inputs: Sequence[bytes], prices: PriceNumbers | None) -> None:
        """Keeps all inputs of the run as JSON (empty for one that has no JSON form), and the prices of its model. They
        replace those of an earlier run, and what was rejected there."""
        ...

    async def reject(self, rejected: Sequence[RejectedInput]) -> None:
        """Adds inputs that the submitter rejects."""
        ...


class WorkQueue(Protocol):
    """Agents that wait for a worker or have one, and the workers that are alive."""

    async def submit(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        """Queues jobs. Agents that are known already stay as they are; with `retry_failed`, failed ones are queued
        again. Returns the completions of agents that need no work."""
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


class FactTable(Protocol):
    """Facts of all agents. Only the worker that has the lease of an agent writes them."""

    async def read(self, key: str) -> tuple[Fact, ...]:
        """Facts of an agent, or of one of its chunks; empty if it is unknown."""
        ...

    async def read_many(self, keys: Sequence[str]) -> list[tuple[Fact, ...]]:
        """As `read`, for several."""
        ...

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        """Applies the writes in order; they are durable on return. `number`: 1, 2, 3 ... for each worker; a number that
        was applied before is skipped. Returns the keys whose writes were refused because their tokens are stale."""
        ...

    async def spent(self) -> Usage:
        """Usage of all replies together, including those of refused writes and deleted facts."""
        ...


class UpdateStream(Protocol):
    """What has happened, for processes that wait for it."""

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


class CallTable(Protocol):
    """Tool calls that one worker makes for all, and the limits of tools."""

    async def claim(self, name: str, worker: str) -> bytes | bool:
        """Outcome of a call, if there is one. True: the worker has claimed the call and makes it, for as long as it is
        alive. False: another worker is making it; an update names the call when it is completed."""
        ...

    async def complete(self, name: str, worker: str, outcome: bytes | None, *, ttl: float) -> None:
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


class Coordinator(Protocol):
    """Coordination service of one run, used by workers in other processes and on other machines.

    Every method of its parts raises StoreError if the service cannot be reached, after some retries. All of them are
    idempotent: a call that is repeated because its reply was lost has no second effect."""

    @property
    def is_durable(self) -> bool:
        """Whether it keeps the run for readers by itself. Otherwise its checkpoint directory does, if it has one."""
        ...

    @property
    def documents(self) -> Documents: ...

    @property
    def inputs(self) -> InputRecord: ...

    @property
    def work(self) -> WorkQueue: ...

    @property
    def facts(self) -> FactTable: ...

    @property
    def updates(self) -> UpdateStream: ...

    @property
    def calls(self) -> CallTable: ...

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def delete_run(self) -> None:
        """Deletes everything about this run."""
        ...
