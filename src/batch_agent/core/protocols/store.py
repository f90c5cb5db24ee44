"""Seam of the checkpoint: the store of facts, and what else it may keep: submissions of batches, changes of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..facts import Fact
from ..fast_dataclass import dataclass
from ..options.price import PriceNumbers
from ..requests import Usage
from ..results import AgentError


@dataclass(frozen=True, slots=True)
class Account:
    """Upper bound of what a run has spent, with the requests in flight; None where it has no limit."""

    tokens: float | None
    usd: float | None


Prices = PriceNumbers
"""Dollars per million tokens: input, cached input, output."""


class Store(Protocol):
    """Store of facts. An agent can be restored from its facts alone."""

    @property
    def is_durable(self) -> bool:
        """Whether a later run can resume from it."""
        ...

    async def open(self) -> None:
        """Raises StoreError, also when another process is using it."""
        ...

    async def plan(self) -> Mapping[str, Any] | None:
        """Plan of the run that recorded these facts, as saved by `save_plan`; None for a new store."""
        ...

    async def save_plan(self, plan: Mapping[str, Any]) -> None: ...

    async def identity(self) -> str:
        """Random id of the run, the same after each resume."""
        ...

    async def facts(self, key: str) -> Sequence[Fact]:
        """Facts of an agent, oldest first; empty if it is unknown."""
        ...

    async def spent(self) -> Usage:
        """Usage of all replies together, including those of restarted agents."""
        ...

    async def account(self) -> Account | None:
        """Account as last saved by `save_account`; None if there is none."""
        ...

    async def save_account(self, account: Account) -> None:
        """Saves the account, durable on return. Raises StoreError."""
        ...

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        """Saves the inputs of the run by index and the prices of its model, for readers of the store, and clears what
        `reject` recorded. Resuming does not use them."""
        ...

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        """Records an input that failed before its agent started, for readers of the store."""
        ...

    def record(self, key: str, fact: Fact) -> None:
        """Records a fact; it may not be durable yet on return."""
        ...

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        """Replaces the facts of an agent atomically: it starts again from its task."""
        ...

    async def settle(self, key: str | None = None, *, sync: bool = False) -> None:
        """Makes all facts durable that were recorded before. Raises StoreError; with the `key` of an agent, LeaseLost
        if another worker has it now. `sync`: at once and durable against a power cut too, which costs an fsync."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class ReadsGroups(Protocol):
    """Store that reads the facts of several agents faster together than one by one."""

    @property
    def has_facts(self) -> bool: ...

    async def fact_lists(self, keys: Sequence[str]) -> Sequence[Sequence[Fact]]:
        """Facts of each agent. They are kept for `facts`, so none of these agents may run meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class SubmittedLine:
    """A request in a submission."""

    key: str
    """Identifies the request: a hash of its agent, its turn and its body."""
    input: int = 0
    """Tokens that the budget has reserved for its prompt; 0 without a budget."""
    output: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """Requests that are submitted as one batch, recorded before the batch is created."""

    wave: str
    """Random id, by which the batch is found again."""
    at: float
    """When it was about to be created, in seconds since the epoch."""
    lines: tuple[SubmittedLine, ...]
    file: str = ""
    """The provider's id of the file with the requests; empty if there is none, or not yet."""
    batch: str = ""
    """The provider's id of the batch; empty: it may or may not have been created."""
    has_ended: bool = False
    """The provider has reported its end. Results of it may have been counted against the budget."""


@dataclass(frozen=True, slots=True)
class EarlierSubmission:
    """A request that was submitted by an earlier process, or whose agent did not wait for the result. Its reservation
    counts as spent."""

    line: SubmittedLine
    had_ended: bool
    """The earlier process may have counted what it was billed instead."""


@runtime_checkable
class KeepsSubmissions(Protocol):
    """Store that records what is submitted in batches."""

    async def submissions(self) -> Sequence[Submission]:
        """Submissions with lines that no agent has taken, oldest first, and only with those lines."""
        ...

    async def save_submission(self, submission: Submission) -> None:
        """Records a submission, or what has become known of it, after all facts that were recorded before. Durable on
        return, also against a power cut. Raises StoreError."""
        ...

    def take_lines(self, wave: str, keys: Sequence[str]) -> None:
        """Records that agents have received these lines. May not be durable on return."""
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """What the user changed of a run while it was running."""

    name: str
    """`max_usd`, `deadline`, `cancel` or `add`."""
    value: Any
    """JSON data: the new value, the key of an agent, or a list of inputs."""
    given: Any = None
    """The value with which the run was started, of an option."""


@runtime_checkable
class KeepsControls(Protocol):
    """Store that records what the user changes of a live run."""

    async def controls(self) -> Sequence[Control]:
        """What was changed, oldest first."""
        ...

    async def save_controls(self, controls: Sequence[Control], first_index: int | None = None) -> None:
        """Records changes. Durable on return. `first_index`: of the inputs that were added, for readers of the store;
        None if it is unknown. Raises StoreError."""
        ...
