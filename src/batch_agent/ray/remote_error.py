"""Errors in transit between processes: class, message and kind, without attributes that may not be picklable."""

from ..core.errors import BackendError, BatchAgentError, ErrorKind, PlanMismatch, SpecError, StoreError
from ..core.fast_dataclass import dataclass
from ..core.run_failure import RunStopped

_MESSAGE_ONLY: tuple[type[BatchAgentError], ...] = (PlanMismatch, SpecError, StoreError)


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Serializable description of a worker's error."""

    name: str
    message: str
    kind: ErrorKind = ErrorKind.INTERNAL

    @classmethod
    def of(cls, error: BatchAgentError) -> "RemoteError":
        name = next((kept.__name__ for kept in _MESSAGE_ONLY if isinstance(error, kept)), type(error).__name__)
        kind = error.kind if isinstance(error, BackendError | RunStopped) else ErrorKind.INTERNAL
        return cls(name, str(error), kind)

    def error(self) -> BatchAgentError:
        """The error as the worker raised it."""
        if self.name == BackendError.__name__:
            return BackendError(self.kind, self.message)
        for kept in _MESSAGE_ONLY:
            if self.name == kept.__name__:
                return kept(self.message)
        return RunStopped(self.kind, self.message)
