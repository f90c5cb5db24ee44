"""What goes through a flow, and what comes out of it."""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from .fast_dataclass import dataclass
from .requests import NO_USAGE, Usage
from .results import AgentError, Results

OnFailure = Literal["keep", "skip", "stop"]
"""What becomes of an item whose agent failed: it goes on as an error, past all other stages up to a reduce, which is
told of it; it leaves the flow; or the whole flow ends there."""


@dataclass(frozen=True, slots=True)
class Item(Mapping[str, Any]):
    """One thing on its way: the fields of the input that it came from, and the answer of each stage by its name."""

    position: tuple[int, ...]
    """The number of its input, then its number among what that was expanded into."""
    fields: Mapping[str, Any]
    error: AgentError | None = None
    stage: str = ""
    """Where it failed."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def having(self, **fields: Any) -> "Item":
        return replace(self, fields={**self.fields, **fields})

    def failed(self, stage: str, error: AgentError) -> "Item":
        return replace(self, error=error, stage=stage)


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage did. Its results are in the order of their items."""

    name: str
    backend: str = ""
    model: str = ""
    results: Results = field(default_factory=Results)
    skipped: int = 0
    """Items that left the flow here."""
    usd: float | None = None
    """What it cost; None where nobody knows the model's price."""
    seconds: float = 0.0
    """From its first item to its last result."""

    @property
    def failed(self) -> int:
        """How many of its agents have no answer."""
        return sum(not result.ok for result in self.results)

    @property
    def usage(self) -> Usage:
        """What its agents used at any time, also before a resume."""
        return sum((result.usage for result in self.results), NO_USAGE)


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What came out at the end, in order, and what each stage did."""

    items: tuple[Item, ...] = ()
    stages: Mapping[str, StageReport] = field(default_factory=dict)
    callback_failures: tuple[Item, ...] = ()
    """Items for which a function of the flow raised (filter, expand, group_by, shown), with `error` and, in `stage`,
    which function it was; also those that a reduce has made into one answer since."""

    @property
    def usage(self) -> Usage:
        """What all stages used."""
        return sum((stage.usage for stage in self.stages.values()), NO_USAGE)

    @property
    def usd(self) -> float | None:
        """None where the price of any stage is not known."""
        costs = [stage.usd for stage in self.stages.values()]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
