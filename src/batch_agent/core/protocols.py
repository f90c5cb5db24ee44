"""Every seam. The engine knows these, never who stands behind them.

What a backend can do.

What a server says of its own load.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from .agent_config import Job
from .coordinator import Completion
from .events import Event
from .facts import Fact
from .fast_dataclass import dataclass
from .messages import ToolCall, ToolResult, ToolSpec
from .requests import Delta, Request, Usage
from .results import AgentResult, CallRecord


@dataclass(frozen=True, slots=True)
class Traits:
    """What a backend was seen, or is known, to be able to do."""

    name: str
    model: str
    native_tools: bool
    json_schema: bool
    """It keeps an answer to a JSON schema."""
    json_schema_beside_tools: bool
    """It does so in a request that also offers tools, without making tool calls impossible."""
    inflight: int
    """Requests in flight to start with when the user names no number."""
    fixed_inflight: bool = False
    """More than `inflight` never helps (the server's own slots)."""
    context_tokens: int | None = None
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, slower tiers included; None where nobody knows, or nobody needs to."""
    kv_running_tokens: int | None = None
    """Tokens that its running requests can hold together: what waits in a slower tier has to come back for them."""
    strict_schema: bool = False
    """It keeps only schemas that have a strict form (core/schema.py)."""
    keeps_agents: bool = False
    """It keeps something for each agent, until the agent is said to leave."""
    managed_cache: bool = False
    """A prefix can be read from its cache only after the first answer, so warming it before a burst pays."""
    ignores: tuple[str, ...] = ()
    """Sampling options that it has no word for."""
    seen: tuple[str, ...] = ()
    """What is active, in words; nothing that was not seen."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One look at a server. Counters count from its start."""

    running: int = 0
    """Requests in its batch."""
    waiting: int = 0
    """Requests that it has taken and has no room for yet."""
    kv_usage: float | None = None
    """The share of its KV cache that running requests hold; what is merely kept for later does not count."""
    preemptions: int = 0
    computed: int = 0
    """Tokens that took a place in its KV cache: prompts without what was found there, and answers."""


class Backend(Protocol):
    """An inference server. One method; warming is a request with max_tokens=1."""

    @property
    def traits(self) -> Traits: ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Sends one turn. Raises BackendError only; leaving the context early aborts the request."""
        ...

    async def leave(self, agent: str) -> None:
        """An agent is done: whatever the server keeps for it may go. Never raises, and never waits for long."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class ReportsLoad(Protocol):
    """A backend whose server can be asked how busy it is."""

    async def load(self) -> ServerLoad | None:
        """None when it does not say, or not this time. Never raises BackendError, and never waits for long."""
        ...


@runtime_checkable
class HasEndpoints(Protocol):
    """A backend of several endpoints."""

    def unavailable(self) -> tuple[str, ...]:
        """Endpoints that are out of service, each with its last error."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A backend whose server can be asked how long a text is."""

    async def count_tokens(self, text: str) -> int | None:
        """None when it does not say. Never raises BackendError, and never waits for long."""
        ...


@dataclass(frozen=True, slots=True)
class CallHistory:
    """What is known of the calls of a turn that an earlier process began."""

    turn: int = 0
    settled: Mapping[str, ToolResult] = field(default_factory=dict)
    """By the id of the call."""
    claimed: frozenset[str] = frozenset()
    """Ids of calls that may or may not have been made."""
    inherited: tuple[ToolResult, ...] = ()
    """Calls that an earlier life of this agent has made."""
    earlier: tuple[CallRecord, ...] = ()
    """The calls of this agent's earlier turns."""
    life: int = 0
    """Other in each life of the agent that comes after one which has changed something."""


class Journal(Protocol):
    """Where an agent writes down the calls that must not be made twice."""

    @property
    def is_durable(self) -> bool:
        """Whether a later process can go on from it."""
        ...

    async def identity(self) -> str:
        """As `Store.identity`."""
        ...

    async def claim(self, call: ToolCall) -> None:
        """Durable when it returns, also against a power cut: only then may the call be made."""
        ...

    def withdraw(self, call: ToolCall) -> None:
        """Takes a claim back: the call was not made. Never raises."""
        ...

    def settle(self, result: ToolResult) -> None: ...


class ToolSession(Protocol):
    """One agent's view of the tools. Failures are results; leaving the agent's life cancels what is running."""

    def start(self, position: int, call: ToolCall) -> None:
        """The model has asked for this call and still speaks. A tool that may start early does so; its result waits
        for `results`."""
        ...

    async def abandon(self) -> None:
        """The answer that asked for the started calls came to nothing: they are cancelled, and gone on return."""
        ...

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        """Runs the calls at the same time; one result per call, in order. Never raises for a tool's failure. `past` is
        what the checkpoint knows of calls that change something."""
        ...


class ToolSet(Protocol):
    """The tools of a run."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    @property
    def may_start_early(self) -> bool:
        """Whether any tool may be started before the model's answer is whole."""
        ...

    def session(self, agent: str, journal: Journal | None = None) -> ToolSession: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """The most that a run may have spent of its budget, with what is in flight. None for what it has no limit of."""

    tokens: float | None
    usd: float | None


class Store(Protocol):
    """Where facts are kept. What an agent said and did can be told from its facts alone; there is nothing else."""

    @property
    def is_durable(self) -> bool:
        """Whether a later run can go on from it."""
        ...

    async def open(self) -> None:
        """Raises StoreError, also when another process is using it."""
        ...

    async def plan(self) -> Mapping[str, Any] | None:
        """What the run that made these facts asked, as `keep_plan` was told; None for a new store."""
        ...

    async def keep_plan(self, plan: Mapping[str, Any]) -> None: ...

    async def identity(self) -> str:
        """A random name of the run, the same each time it goes on. Empty in stores of versions without one."""
        ...

    async def facts(self, key: str) -> Sequence[Fact]:
        """The story so far, oldest first; empty for an agent that is not known."""
        ...

    async def spent(self) -> Usage:
        """What all replies together took, those of forgotten agents too."""
        ...

    async def account(self) -> Account | None:
        """As `keep_account` was last told; None where no budget was ever kept here."""
        ...

    async def keep_account(self, account: Account) -> None:
        """Durable on return. Raises StoreError."""
        ...

    def record(self, key: str, fact: Fact) -> None:
        """Keeps a fact; it may not be durable yet when this returns."""
        ...

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        """Puts these in the place of an agent's facts, at once: it starts again from its task."""
        ...

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        """Once this returns, all facts that were recorded before are durable. Raises StoreError. `key`: who asks;
        raises LeaseLost where another worker has this agent by now. `sync`: at once, and durable against a power cut
        too, which costs a write to the disk itself."""
        ...

    async def aclose(self) -> None: ...


class WorkSource(Protocol):
    """Where jobs come from; asked for one more only when it can be worked on."""

    @property
    def total(self) -> int | None: ...

    @property
    def is_bounded(self) -> bool:
        """It comes to its end without being waited for, once nobody else has anything to do."""
        ...

    async def take(self) -> Job | None: ...

    def release(self, job: Job) -> None:
        """A job that was taken is not run here any more, whatever became of it."""
        ...


class Slot(Protocol):
    """The right to one request in flight."""

    def release(self) -> None: ...


class Executor(Protocol):
    """Runs agents, each to its end."""

    def recall(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        """The result of a job that needs no more work, or None."""
        ...

    async def retell(self, job: Job, facts: Sequence[Fact], ending: Completion) -> AgentResult | None:
        """The result of an agent that ended elsewhere, from what it said there and how it ended. None where the facts
        are not all there."""
        ...

    def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> Awaitable[AgentResult]:
        """Goes on from `facts`. It is given the slot of its next turn, and owns it. Raises RunStopped when no agent
        can go on."""
        ...


class EventSink(Protocol):
    """Must not block and must not raise."""

    def emit(self, event: Event) -> None: ...


@runtime_checkable
class SlowSink(Protocol):
    """A view on a run that may block. All its methods are called from one thread, in order. One that is given to
    several runs is closed after each."""

    def take(self, at: float, event: Event) -> None:
        """`at`: when it happened, in seconds since the epoch."""
        ...

    def flush(self) -> None:
        """After each handful of events."""
        ...

    def close(self) -> None: ...


EventSinks = EventSink | SlowSink | Sequence[EventSink | SlowSink] | None
