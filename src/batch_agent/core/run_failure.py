"""Error that ends a run before its inputs do. It carries the results, so it is apart from `errors`."""

from typing import Any

from .errors import BatchAgentError, ErrorKind
from .results import AgentResult


class RunStopped(BatchAgentError):
    """The run ended before its inputs did; with a `checkpoint_dir`, the same run resumes.

    Reasons: the backend cannot be used any more; the iterator of the inputs raised (kind `inputs`, its exception is the
    cause); the results file cannot be written (kind `out`); or a stage of a flow with `on_failure="stop"` failed."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.results: list[AgentResult] = []
        """Results of the agents that had finished."""
        self.flow: Any = None
        """In a flow: the `FlowResult` so far, with the results of all stages."""
