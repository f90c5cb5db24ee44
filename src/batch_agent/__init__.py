"""Input list in, structured result list out: N tool-using LLM agents sharing one inference backend."""

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
from .core.scheduling import Scheduling
from .core.sharing import Finding, PrefixReport
from .core.spec import BatchSpec
from .data import SqlQuery
from .flows import Flow
from .observe.telemetry.metrics import Metrics
from .observe.telemetry.traces import Traces
from .swarm.pool import VLLMPool
from .swarm.response import Response
from .tools import MCP, Tool

__all__ = [
    "MCP",
    "AgentError",
    "AgentResult",
    "AgentsFailed",
    "BackendError",
    "BatchAgent",
    "BatchAgentError",
    "BatchSpec",
    "Context",
    "Endpoint",
    "ErrorKind",
    "Fields",
    "Finding",
    "Flow",
    "FlowResult",
    "Forecast",
    "Item",
    "Limits",
    "Metrics",
    "PlanMismatch",
    "Prefix",
    "PrefixReport",
    "Response",
    "Results",
    "Retry",
    "RunStopped",
    "Sampling",
    "Scheduling",
    "SpecError",
    "Spend",
    "SqlQuery",
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
