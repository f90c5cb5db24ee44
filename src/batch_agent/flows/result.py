"""Items of a flow, and its result."""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from ..core.fast_dataclass import dataclass
from ..core.requests import NO_USAGE, Usage
from ..core.results import AgentError
from ..data.results import StageReport

OnFailure = Literal["keep", "skip", "stop"]
"""What happens to an item whose agent failed. "keep": it skips the other stages up to a reduce, which gets its error;
"skip": it leaves the flow; "stop": the flow ends."""


@dataclass(frozen=True, slots=True)
class Item(Mapping[str, Any]):
    """Item of a flow: the fields of its input, and the answer of each stage by the name of the stage."""

    position: tuple[int, ...]
    """Index of its input, then its index within each expansion."""
    fields: Mapping[str, Any]
    error: AgentError | None = None
    stage: str = ""
    """The stage in which it failed."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def with_fields(self, **fields: Any) -> "Item":
        return replace(self, fields={**self.fields, **fields})

    def failed(self, stage: str, error: AgentError) -> "Item":
        return replace(self, error=error, stage=stage)


@dataclass(frozen=True, slots=True)
class FlowResult:
    """Result of a flow: the items that reached its end, in order, and the report of each stage."""

    items: tuple[Item, ...] = ()
    stages: Mapping[str, StageReport] = field(default_factory=dict)
    callback_failures: tuple[Item, ...] = ()
    """Items for which a callback of the flow raised (filter, expand, group_by, shown); `stage` names the callback.
    Includes items that a reduce has merged since."""

    @property
    def usage(self) -> Usage:
        """Usage of all stages together."""
        return sum((stage.usage for stage in self.stages.values()), NO_USAGE)

    @property
    def usd(self) -> float | None:
        """Cost of all stages; None if the price of any of them is unknown."""
        costs = [stage.usd for stage in self.stages.values()]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
