"""Input list in, structured result list out: N tool-using LLM agents sharing one inference backend."""

from typing import TYPE_CHECKING

from .core.lazily import names_from

if TYPE_CHECKING:
    from .api import BatchAgent
    from .backends.hostfile import Endpoint, parse_hostfile
    from .core.errors import (
        AgentsFailed,
        BackendError,
        BatchAgentError,
        ErrorKind,
        PlanMismatch,
        RunStopped,
        SpecError,
        StoreError,
    )
    from .core.fields import Fields
    from .core.flow import FlowResult, Item, StageReport
    from .core.forecast import Forecast
    from .core.options import Context, Limits, Prefix, Retry, Spend, Timeouts, Together, Tooling
    from .core.requests import Sampling, Usage
    from .core.results import AgentError, AgentResult, Results
    from .core.run_options import RunOptions, StageOptions
    from .core.runtime import Runtime
    from .core.scheduling import Scheduling
    from .core.sharing import Finding, PrefixReport
    from .core.spec import BatchSpec
    from .core.work import Changes, FileChange
    from .data import SqlQuery
    from .flows import Flow
    from .observe.telemetry.metrics import Metrics
    from .observe.telemetry.traces import Traces
    from .runtimes import OpenCodeRuntime, ProcessRuntime
    from .swarm.pool import VLLMPool
    from .swarm.response import Response
    from .tools import MCP, Tool

_HOMES = {
    ".api": "BatchAgent",
    ".backends.hostfile": "Endpoint parse_hostfile",
    ".core.errors": "AgentsFailed BackendError BatchAgentError ErrorKind PlanMismatch RunStopped SpecError StoreError",
    ".core.fields": "Fields",
    ".core.flow": "FlowResult Item StageReport",
    ".core.forecast": "Forecast",
    ".core.options": "Context Limits Prefix Retry Spend Timeouts Together Tooling",
    ".core.requests": "Sampling Usage",
    ".core.results": "AgentError AgentResult Results",
    ".core.run_options": "RunOptions StageOptions",
    ".core.runtime": "Runtime",
    ".core.scheduling": "Scheduling",
    ".core.sharing": "Finding PrefixReport",
    ".core.spec": "BatchSpec",
    ".core.work": "Changes FileChange",
    ".data": "SqlQuery",
    ".flows": "Flow",
    ".observe.telemetry.metrics": "Metrics",
    ".observe.telemetry.traces": "Traces",
    ".runtimes": "OpenCodeRuntime ProcessRuntime",
    ".swarm.pool": "VLLMPool",
    ".swarm.response": "Response",
    ".tools": "MCP Tool",
}
"""Where the names are from. Each is imported when it is first asked for: `import batch_agent` costs nothing."""

__all__ = [
    "MCP",
    "AgentError",
    "AgentResult",
    "AgentsFailed",
    "BackendError",
    "BatchAgent",
    "BatchAgentError",
    "BatchSpec",
    "Changes",
    "Context",
    "Endpoint",
    "ErrorKind",
    "Fields",
    "FileChange",
    "Finding",
    "Flow",
    "FlowResult",
    "Forecast",
    "Item",
    "Limits",
    "Metrics",
    "OpenCodeRuntime",
    "PlanMismatch",
    "Prefix",
    "PrefixReport",
    "ProcessRuntime",
    "Response",
    "Results",
    "Retry",
    "RunOptions",
    "RunStopped",
    "Runtime",
    "Sampling",
    "Scheduling",
    "SpecError",
    "Spend",
    "SqlQuery",
    "StageOptions",
    "StageReport",
    "StoreError",
    "Timeouts",
    "Together",
    "Tool",
    "Tooling",
    "Traces",
    "Usage",
    "VLLMPool",
    "parse_hostfile",
]


if not TYPE_CHECKING:  # a type checker sees the imports above, and names that are not there
    __getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
