"""What a tool says about itself: who may share its results, and how hard it may be worked."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, get_args

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.validation import at_least, flags, is_number, seconds

Effect = Literal["pure", "read", "stateful", "write"]
"""What a call does beside giving a result. pure: nothing, and the same arguments always give the same. read: nothing,
but what it reads may change. stateful: it depends on this agent's earlier calls. write: it changes something."""

DEFAULT_TTL = 300.0


@dataclass(frozen=True, slots=True)
class SharingPolicy:
    """When one execution serves others."""

    effect: Effect = "write"
    ttl: float | None = None
    """Seconds for which a result is good. None: for ever if pure, five minutes if read."""
    version: Callable[[Mapping[str, Any]], Hashable] | None = None
    """Of what the arguments name, such as a file's time of change: a result is good while it stays the same. Quick."""
    keeps_errors: bool = False
    """A failure is a result like any other, and kept as long."""
    idempotency_arg: str | None = None
    """A parameter that the model does not see, filled with a key which is the same when a call must be made again."""

    idempotent: bool = False
    """Of a write: to make it twice is to make it once, so it may be made again."""
    history_arg: str | None = None
    """Of a stateful tool: a parameter that the model does not see, filled with the arguments of this agent's earlier
    calls of it, as texts. The result then follows from the call and its history, and agents with the same share it."""

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise SpecError(f"effect must be one of {', '.join(get_args(Effect))}; got {self.effect!r}.")
        if self.ttl is not None and self.ttl != float("inf") and not (is_number(self.ttl) and self.ttl >= 0):
            raise SpecError(f"ttl must be a number of seconds of at least 0; got {self.ttl!r}.")
        flags(self, "keeps_errors", "idempotent")
        _check_function("version", self.version)
        for name in ("idempotency_arg", "history_arg"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise SpecError(f"{name} must be the name of a parameter; got {value!r}.")
        if not self.is_shared and (self.ttl is not None or self.version is not None or self.keeps_errors):
            raise SpecError(
                f"A tool of effect {self.effect!r} is never shared: ttl, version and keeps_errors say nothing."
            )
        if (self.idempotency_arg is not None or self.idempotent) and self.effect != "write":
            raise SpecError(f"A tool of effect {self.effect!r} may be called again anyway: leave idempotent out.")
        if self.history_arg is not None and self.effect != "stateful":
            raise SpecError(f"A tool of effect {self.effect!r} has no history: leave history_arg out.")

    @property
    def is_repeatable(self) -> bool:
        """Whether a call that may or may not have been made can be made again."""
        return self.effect != "write" or self.idempotent or self.idempotency_arg is not None

    @property
    def is_shared(self) -> bool:
        """Whether agents may be given each other's results; such a call also does no harm when it comes to nothing."""
        return self.effect in ("pure", "read")

    @property
    def seconds_good(self) -> float:
        if self.ttl is not None:
            return self.ttl
        return float("inf") if self.effect == "pure" or self.version is not None else DEFAULT_TTL


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """How hard a tool may be worked, by all agents of a run together."""

    timeout: float | None = None
    """Seconds for one execution; None: the run's timeout_per_tool."""
    max_concurrent: int | None = None
    """Executions at once; where several processes work on a run, in each of them."""
    rate_limit: float | None = None
    """Executions per second, by all processes that work on a run together."""
    burst: int | None = None
    """Executions that may start at once before the rate counts; None: as many as one second allows."""
    rate_key: Callable[[Mapping[str, Any]], str] | None = None
    """What the rate is counted by, such as the host of a URL; None: the tool."""
    retries: int = 0
    retry_on: tuple[type[Exception], ...] = ()
    """The errors that may pass; others are not tried again."""
    backoff: float = 0.5

    def __post_init__(self) -> None:
        seconds("timeout", self.timeout, or_none=True)
        seconds("backoff", self.backoff)
        if self.rate_limit is not None and not (is_number(self.rate_limit) and self.rate_limit > 0):
            raise SpecError(f"rate_limit must be more than 0, or None for no limit; got {self.rate_limit!r}.")
        for name in ("max_concurrent", "burst"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        at_least("retries", self.retries, 0)
        _check_function("rate_key", self.rate_key)
        if self.rate_limit is None and (self.burst is not None or self.rate_key is not None):
            raise SpecError("burst and rate_key say nothing without a rate_limit.")
        errors = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(error, type) and issubclass(error, Exception) for error in errors):
            raise SpecError(f"retry_on must be a tuple of exception classes; got {self.retry_on!r}.")
        if bool(self.retries) != bool(self.retry_on):
            raise SpecError("retries and retry_on belong together: how often, and for which errors.")


def _check_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise SpecError(f"{name} must be a function of the call's arguments; got {value!r}.")
