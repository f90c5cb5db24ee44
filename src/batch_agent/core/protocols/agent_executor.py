"""Seam of the engine's work: where jobs come from, what runs an agent, and its permit for a request."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from ..agent_config import Job
from ..coordinator import Completion
from ..facts import Fact
from ..requests import Usage
from ..results import AgentResult


class WorkSource(Protocol):
    """Source of jobs, read only when the next one can be run."""

    @property
    def total(self) -> int | None: ...

    @property
    def is_bounded(self) -> bool:
        """Whether it ends by itself once there is no work left."""
        ...

    async def take(self) -> Job | None: ...

    def release(self, job: Job) -> None:
        """Reports that a job that was taken is no longer run here."""
        ...


class Slot(Protocol):
    """Permit for one request in flight."""

    def settle(self, usage: Usage) -> None:
        """Reports the usage of the request, if it was answered."""
        ...

    def release(self) -> None: ...


class Executor(Protocol):
    """Executor of agents, each to its end."""

    def from_checkpoint(self, job: Job, facts: Sequence[Fact]) -> AgentResult | None:
        """Result of a job that needs no more work, or None."""
        ...

    async def from_remote(self, job: Job, facts: Sequence[Fact], completion: Completion) -> AgentResult | None:
        """Result of an agent that ended on another worker, from its facts and its completion. None if facts are
        missing."""
        ...

    def run(self, job: Job, facts: Sequence[Fact], slot: Slot) -> Awaitable[AgentResult]:
        """Runs the agent from `facts` on, and owns the slot of its next turn. Raises RunStopped when no agent can
        continue."""
        ...
