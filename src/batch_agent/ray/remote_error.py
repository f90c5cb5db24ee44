"""Errors on their way from one process to another: what they say and of what kind they are, without what they hold."""

from ..core.errors import BackendError, BatchAgentError, ErrorKind, PlanMismatch, SpecError, StoreError
from ..core.fast_dataclass import dataclass
from ..core.run_failure import RunStopped

_PLAIN: tuple[type[BatchAgentError], ...] = (PlanMismatch, SpecError, StoreError)


@dataclass(frozen=True, slots=True)
class RemoteError:
    """How a worker failed."""

    name: str
    message: str
    kind: ErrorKind = ErrorKind.INTERNAL

    @classmethod
    def of(cls, error: BatchAgentError) -> "RemoteError":
        name = next((plain.__name__ for plain in _PLAIN if isinstance(error, plain)), type(error).__name__)
        kind = error.kind if isinstance(error, BackendError | RunStopped) else ErrorKind.INTERNAL
        return cls(name, str(error), kind)

    def error(self) -> BatchAgentError:
        """As the worker raised it."""
        if self.name == BackendError.__name__:
            return BackendError(self.kind, self.message)
        for plain in _PLAIN:
            if self.name == plain.__name__:
                return plain(self.message)
        return RunStopped(self.kind, self.message)
