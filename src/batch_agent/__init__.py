"""Input list in, structured result list out: N tool-using LLM agents sharing one inference backend."""

from .lazy_imports import lazy_imports

with lazy_imports(globals()):  # `import batch_agent` costs nothing
    from .api import BatchAgent as BatchAgent
    from .backends.hostfile import Endpoint as Endpoint
    from .backends.hostfile import parse_hostfile as parse_hostfile
    from .core.errors import BackendError as BackendError
    from .core.errors import BatchAgentError as BatchAgentError
    from .core.errors import ErrorKind as ErrorKind
    from .core.errors import PlanMismatch as PlanMismatch
    from .core.errors import SpecError as SpecError
    from .core.errors import StoreError as StoreError
    from .core.options import ContextLimits as ContextLimits
    from .core.options import Distributed as Distributed
    from .core.options import Limits as Limits
    from .core.options import Prefix as Prefix
    from .core.options import Retry as Retry
    from .core.options import Rows as Rows
    from .core.options import SpendingLimits as SpendingLimits
    from .core.options import Timeouts as Timeouts
    from .core.options import ToolCaching as ToolCaching
    from .core.options.run_options import RunOptions as RunOptions
    from .core.options.run_options import StageOptions as StageOptions
    from .core.program_runtime import Runtime as Runtime
    from .core.requests import Sampling as Sampling
    from .core.requests import Usage as Usage
    from .core.results import AgentError as AgentError
    from .core.results import AgentResult as AgentResult
    from .core.results import Changes as Changes
    from .core.results import FileChange as FileChange
    from .core.run_failure import RunStopped as RunStopped
    from .core.run_reports import Finding as Finding
    from .core.run_reports import PrefixReport as PrefixReport
    from .core.run_reports import Scheduling as Scheduling
    from .core.spec import BatchSpec as BatchSpec
    from .core.task_fields import Fields as Fields
    from .data import SqlQuery as SqlQuery
    from .data.results import AgentsFailed as AgentsFailed
    from .data.results import Results as Results
    from .data.results import StageReport as StageReport
    from .flows import Flow as Flow
    from .flows.result import FlowResult as FlowResult
    from .flows.result import Item as Item
    from .forecasting.forecast import Forecast as Forecast
    from .observe.telemetry.metrics import Metrics as Metrics
    from .observe.telemetry.traces import Traces as Traces
    from .pools.pool import VLLMPool as VLLMPool
    from .pools.response import Response as Response
    from .programs.runtimes import OpenCodeRuntime as OpenCodeRuntime
    from .programs.runtimes import ProcessRuntime as ProcessRuntime
    from .tools import MCP as MCP
    from .tools import Tool as Tool
    from .tools.tool_context import ToolContext as ToolContext
    from .version import __version__ as __version__
