"""Where the workers of one run meet: work on lease, facts behind tokens, calls that one makes for all.

What the tools of one process have in common with those of others.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from .agent_config import Job
from .facts import Fact
from .fast_dataclass import dataclass
from .messages import ToolSource
from .requests import Usage
from .results import AgentError


@dataclass(frozen=True, slots=True)
class Lease:
    """An agent that a worker may run, for as long as it renews the lease."""

    job: Job
    """Its input is as JSON has it."""
    token: int
    """Larger than that of any lease before it. It goes with every write: where it is not the last, that is refused."""
    facts: tuple[Fact, ...] = ()
    """The agent's story so far."""
    times: int = 1
    """How often the agent was handed out, and not given back. One that kills its workers is known by this."""


@dataclass(frozen=True, slots=True)
class Completion:
    """How an agent ended; what it said is in its facts."""

    key: str
    error: AgentError | None = None
    seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Append:
    """One more fact of an agent. The parts of a long input have keys that begin with their agent's and a dot: they
    belong to its lease."""

    key: str
    token: int
    fact: Fact


@dataclass(frozen=True, slots=True)
class Replace:
    """These facts in the place of all the agent has."""

    key: str
    token: int
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The agent is done, and so is its lease."""

    token: int
    ending: Completion

    @property
    def key(self) -> str:
        return self.ending.key


Write = Append | Replace | End


@dataclass(frozen=True, slots=True)
class Document:
    """A small thing that all workers read and change."""

    data: bytes | None
    """None where nobody has written it yet."""
    now: float
    """By the hub's clock: workers' clocks differ."""


Cursor = tuple[str, ...]
"""A place in the news."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What has happened since."""

    after: Cursor
    """Where the next news begin."""
    endings: tuple[Completion, ...] = ()
    landed: tuple[str, ...] = ()
    """The names of calls that have an outcome, or are free to be made by another."""
    told: tuple[bytes, ...] = ()
    """What workers told everybody."""


class Coordinator(Protocol):
    """One run, shared by workers in other processes and on other machines. Every method raises StoreError when the hub
    cannot be reached, after it was tried for a while. A call that was repeated, because nobody knows whether the first
    one arrived, does nothing more."""

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def forget(self) -> None:
        """Everything about this run goes."""
        ...

    # Documents

    async def read(self, name: str) -> Document: ...

    async def swap(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        """Puts `new` in the place of `old`; does nothing, and says False, where something else is there by now. None:
        nothing."""
        ...

    # Work

    async def post(self, jobs: Sequence[Job], *, retry_failed: bool) -> dict[str, Completion]:
        """Work to be done. Agents that are known already are left as they are; `retry_failed`: those that ended without
        an answer are done again. Gives the endings of those that need not be done."""
        ...

    async def left(self) -> int:
        """Agents that were posted and have not ended."""
        ...

    async def lease(self, worker: str, most: int, *, lasts: float, wait: float) -> list[Lease]:
        """Up to `most` agents: those that nobody has, and those whose leases have run out. Each lease lasts for so many
        seconds. Waits for some, if there are none, but no longer than `wait` seconds: then the list is empty."""
        ...

    async def renew(self, worker: str, tokens: Mapping[str, int], *, lasts: float) -> frozenset[str]:
        """The worker is alive, and holds these agents by these tokens. Gives the keys of those that were handed to
        another one."""
        ...

    async def give_back(self, worker: str, tokens: Mapping[str, int]) -> None:
        """The worker does not do these: others may have them at once."""
        ...

    async def leave(self, worker: str) -> None:
        """The worker goes. Others may have what it still holds, agents and calls, at once."""
        ...

    async def facts(self, key: str) -> tuple[Fact, ...]:
        """The story of an agent, or of one of its parts; empty where nobody knows it."""
        ...

    async def write(self, worker: str, number: int, writes: Sequence[Write]) -> frozenset[str]:
        """All in order, and durable on return. `number`: 1, 2, 3 ... for each worker; one that was written before is
        not written again. Gives the keys of agents whose writes were refused: their tokens are not the last."""
        ...

    async def spent(self) -> Usage:
        """What all replies together took, also those that were refused or forgotten."""
        ...

    # News

    async def latest(self, *, endings: bool = True) -> Cursor:
        """Where the news are now. `endings`: False for one who need not be woken up by them; they may come all the
        same."""
        ...

    async def news(self, after: Cursor, *, wait: float) -> Updates:
        """All since then; waits for some, if there are none, but no longer than `wait` seconds."""
        ...

    async def tell(self, data: bytes) -> None:
        """To everybody who reads the news. Old ones may be gone when somebody comes to read them."""
        ...

    # Calls

    async def claim(self, name: str, worker: str) -> bytes | bool:
        """The outcome of a call, if there is one. True: it is for this worker to make, for as long as it is alive.
        False: another one is making it; its name is in the news when that has come to something."""
        ...

    async def land(self, name: str, worker: str, outcome: bytes | None, *, lasts: float) -> None:
        """A claimed call came to this, which is good for so many seconds (inf: as long as the run). None: to nothing,
        and another one may make it. From a worker that has lost the claim, it does nothing."""
        ...

    async def turn(self, name: str, *, interval: float, ahead: float) -> float:
        """A place in a queue where one may go every `interval` seconds, those first who come within `ahead` seconds of
        their time. Gives the seconds to wait."""
        ...


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one execution of a call came to."""

    content: str
    is_error: bool
    seconds: float
    """That the execution took."""
    good: float
    """Seconds for which it may be given to those who ask from now on; 0: only to those who have asked already."""
    timed_out: bool = False
    """Its time was over. It is given to nobody in other processes, who have times of their own."""


class SharedCalls(Protocol):
    """Calls that are made once for all processes of a run, and rates that they keep together. Where the others cannot
    be reached, each process is for itself: nothing here fails because of them."""

    async def call(self, name: str, make: Callable[[], Awaitable[CallOutcome]]) -> tuple[CallOutcome, ToolSource]:
        """What the call of this name comes to, made here, or by another process while we waited, or by one before us;
        the execution may have begun at any time before. Raises what `make` raises."""
        ...

    async def turn(self, name: str, *, interval: float, ahead: float) -> float | None:
        """A place in a queue where one may go every `interval` seconds, those first who come within `ahead` seconds of
        their time. Gives the seconds to wait; None: the queue cannot be asked, and one of our own has to do."""
        ...
