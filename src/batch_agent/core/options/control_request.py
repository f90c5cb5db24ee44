"""What a user changes of a live run: the request, and what a resumed run keeps of it."""

from collections.abc import Sequence
from typing import Any

from ..errors import SpecError
from ..fast_dataclass import dataclass
from ..protocols.store import Control
from ..validation import at_least
from . import SpendingLimits


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """Changes that are made together, or not at all. What is None stays as it is."""

    max_inflight: int | None = None
    max_usd: float | None = None
    deadline: float | None = None
    """Seconds from the start of the run, as the option."""
    pause: bool | None = None
    cancel: tuple[str, ...] = ()
    """Agents: key, index, or beginning of a key."""
    add: tuple[Any, ...] = ()
    """Inputs, as JSON data."""

    def check(self) -> None:
        """Raises SpecError for values that no run accepts."""
        if self == ControlRequest():
            raise SpecError("Say what to change: max_inflight, max_usd, deadline, pause, cancel or add.")
        if self.max_inflight is not None:
            at_least("max_inflight", self.max_inflight, 1)
        SpendingLimits(max_usd=self.max_usd, deadline=self.deadline)


@dataclass(frozen=True, slots=True)
class KeptControls:
    """What a resumed run keeps of the changes that were made during earlier ones."""

    max_usd: float | None = None
    deadline: float | None = None
    cancelled: tuple[str, ...] = ()
    added: tuple[Any, ...] = ()

    @classmethod
    def of(cls, controls: Sequence[Control], given: SpendingLimits) -> "KeptControls":
        """`given`: the options of this run. An option that is not what it was when it was changed replaces the
        change."""
        last = {each.name: each for each in controls}

        def option(name: str) -> Any:
            value, found = getattr(given, name), last.get(name)
            return found.value if found is not None and found.given == value else value

        cancelled = tuple(each.value for each in controls if each.name == "cancel")
        added = tuple(value for each in controls if each.name == "add" for value in each.value)
        return cls(option("max_usd"), option("deadline"), cancelled, added)
