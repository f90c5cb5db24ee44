"""Seam of tools: the tools of a run, an agent's session with them, and the journal of its calls."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from ..agent_config import Job
from ..facts import Fact
from ..fast_dataclass import dataclass
from ..messages import ToolCall, ToolResult, ToolSpec
from ..results import CallRecord


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Calls of a turn that an earlier process began, as the checkpoint has them."""

    turn: int = 0
    settled: Mapping[str, ToolResult] = field(default_factory=dict)
    """Results by call id."""
    claimed: frozenset[str] = frozenset()
    """Ids of calls that may have been made."""
    inherited: tuple[ToolResult, ...] = ()
    """Calls that an earlier attempt of this agent made."""
    earlier: tuple[CallRecord, ...] = ()
    """The calls of this agent's earlier turns."""
    life: int = 0
    """Differs for each attempt that follows one which has changed something."""


class Journal(Protocol):
    """Journal of the calls of an agent that must not be made twice."""

    @property
    def is_durable(self) -> bool:
        """Whether a later process can resume from it."""
        ...

    async def identity(self) -> str:
        """As `Store.identity`."""
        ...

    async def claim(self, call: ToolCall) -> None:
        """Records the intent to make a call. Durable on return, also against a power cut: only then may it be made."""
        ...

    def withdraw(self, call: ToolCall) -> None:
        """Cancels a claim: the call was not made. Never raises."""
        ...

    def settle(self, result: ToolResult) -> None: ...


class ToolSession(Protocol):
    """Tools of one agent. Failures are results; the end of the agent cancels running calls."""

    def start(self, position: int, call: ToolCall) -> None:
        """Starts a call while the model is still generating, if the tool allows it; `results` returns its result."""
        ...

    async def abandon(self) -> None:
        """Cancels the started calls because their reply failed; they have ended on return."""
        ...

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        """Runs the calls concurrently; one result per call, in order. Never raises for a tool's failure. `past`: what
        the checkpoint has of calls that change something."""
        ...

    def expected_readers(self, path: Sequence[str]) -> float:
        """Agents that are expected to have these references, in this order, at the beginning of their prompts."""
        ...


class ToolSet(Protocol):
    """Tools of a run."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    @property
    def may_start_early(self) -> bool:
        """Whether any tool may start before the model's reply is complete."""
        ...

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> ToolSession:
        """Session of an agent. `job`: what tools may know of it."""
        ...

    def recall(self, facts: Sequence[Fact]) -> None:
        """Takes over the order of references from the facts of an agent that an earlier process began."""
        ...

    async def aclose(self) -> None: ...
