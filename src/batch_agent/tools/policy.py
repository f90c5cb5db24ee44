"""Policies of a tool: when agents share its results, and the limits on its executions."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, get_args

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Placement
from ..core.validation import at_least, flags, is_number, seconds

Effect = Literal["pure", "read", "stateful", "write"]
"""Side effect of a call. pure: none, and the same arguments always give the same result. read: none, but what it reads
may change. stateful: the result depends on this agent's earlier calls. write: it changes something."""

DEFAULT_TTL = 300.0


@dataclass(frozen=True, slots=True)
class SharingPolicy:
    """When the result of one execution may be given to other calls."""

    effect: Effect = "write"
    ttl: float | None = None
    """Seconds for which a result is cached. None: unlimited for pure tools, five minutes for read tools."""
    version: Callable[[Mapping[str, Any]], Hashable] | None = None
    """Version of what the arguments name, such as a file's mtime: a cached result is valid while it stays the same.
    Called for each call, so it must be fast."""
    keeps_errors: bool = False
    """Errors are cached like results."""
    idempotency_arg: str | None = None
    """A parameter hidden from the model, filled with an idempotency key that is the same when a call is repeated."""

    placement: Placement | None = None
    """Where a result stands in the prompt: "inline" behind its call, "first" before the agent's own text, where results
    that several agents read are computed once, or "auto". None: as the run's shared_results says."""
    idempotent: bool = False
    """For writes: making a call twice has the effect of making it once, so it may be repeated."""
    history_arg: str | None = None
    """For stateful tools: a parameter hidden from the model, filled with the arguments of this agent's earlier calls of
    the tool, as JSON strings. The result then depends on call and history only, so agents with the same history share
    it."""

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise SpecError(f"effect must be one of {', '.join(get_args(Effect))}; got {self.effect!r}.")
        if self.ttl is not None and self.ttl != float("inf") and not (is_number(self.ttl) and self.ttl >= 0):
            raise SpecError(f"ttl must be a number of seconds >= 0; got {self.ttl!r}.")
        flags(self, "keeps_errors", "idempotent")
        _check_function("version", self.version)
        for name in ("idempotency_arg", "history_arg"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise SpecError(f"{name} must be the name of a parameter; got {value!r}.")
        if not self.is_shared and (self.ttl is not None or self.version is not None or self.keeps_errors):
            raise SpecError(
                f"A tool of effect {self.effect!r} is never shared: ttl, version and keeps_errors have no effect."
            )
        if (self.idempotency_arg is not None or self.idempotent) and self.effect != "write":
            raise SpecError(
                f"A tool of effect {self.effect!r} can always be repeated: omit idempotent and idempotency_arg."
            )
        if self.placement is not None and self.placement not in get_args(Placement):
            raise SpecError(f"placement must be one of {', '.join(get_args(Placement))}; got {self.placement!r}.")
        if self.placement in ("first", "auto") and not self.is_shared:
            raise SpecError(
                f"placement={self.placement!r} is for results that several agents read; a tool of effect "
                f"{self.effect!r} runs again for each agent. Set effect='read' or 'pure', or leave out placement."
            )
        if self.history_arg is not None and self.effect != "stateful":
            raise SpecError(f"A tool of effect {self.effect!r} has no history: omit history_arg.")

    @property
    def is_repeatable(self) -> bool:
        """Whether a call may be repeated if it is not known whether it was made."""
        return self.effect != "write" or self.idempotent or self.idempotency_arg is not None

    @property
    def is_shared(self) -> bool:
        """Whether agents share results. Such calls may also be made in advance and discarded."""
        return self.effect in ("pure", "read")

    @property
    def effective_ttl(self) -> float:
        if self.ttl is not None:
            return self.ttl
        return float("inf") if self.effect == "pure" or self.version is not None else DEFAULT_TTL


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """Limits on the executions of a tool, over all agents of a run."""

    timeout: float | None = None
    """Timeout of one execution in seconds; None: the run's timeout_per_tool."""
    max_concurrent: int | None = None
    """Concurrent executions; in a distributed run, over all processes."""
    rate_limit: float | None = None
    """Executions per second; in a distributed run, over all processes."""
    burst: int | None = None
    """Executions that may start at once before the rate applies; None: as many as one second allows."""
    rate_key: Callable[[Mapping[str, Any]], str] | None = None
    """Key by which the rate is counted, such as the host of a URL; None: one rate for the tool."""
    retries: int = 0
    retry_on: tuple[type[Exception], ...] = ()
    """Transient errors; others are not retried."""
    backoff: float = 0.5
    is_local: bool = False
    """Whether `max_concurrent` is a limit of each process, as of what a tool does on its own machine."""

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
            raise SpecError("burst and rate_key have no effect without rate_limit.")
        errors = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(error, type) and issubclass(error, Exception) for error in errors):
            raise SpecError(f"retry_on must be a tuple of exception classes; got {self.retry_on!r}.")
        if bool(self.retries) != bool(self.retry_on):
            raise SpecError("Give both retries and retry_on, or neither: how often to retry, and after which errors.")


def _check_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise SpecError(f"{name} must be a function of the call's arguments; got {value!r}.")
