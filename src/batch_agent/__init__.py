"""Input list in, structured result list out: N tool-using LLM agents sharing one inference backend."""

from .core.lazily import lazy_imports

with lazy_imports(globals()):  # `import batch_agent` costs nothing
    from .api import BatchAgent as BatchAgent
    from .backends.hostfile import Endpoint as Endpoint
    from .backends.hostfile import parse_hostfile as parse_hostfile
    from .core.errors import AgentsFailed as AgentsFailed
    from .core.errors import BackendError as BackendError
    from .core.errors import BatchAgentError as BatchAgentError
    from .core.errors import ErrorKind as ErrorKind
    from .core.errors import PlanMismatch as PlanMismatch
    from .core.errors import RunStopped as RunStopped
    from .core.errors import SpecError as SpecError
    from .core.errors import StoreError as StoreError
    from .core.fields import Fields as Fields
    from .core.flow import FlowResult as FlowResult
    from .core.flow import Item as Item
    from .core.flow import StageReport as StageReport
    from .core.forecast import Forecast as Forecast
    from .core.options import Context as Context
    from .core.options import Limits as Limits
    from .core.options import Prefix as Prefix
    from .core.options import Retry as Retry
    from .core.options import Spend as Spend
    from .core.options import Timeouts as Timeouts
    from .core.options import Together as Together
    from .core.options import Tooling as Tooling
    from .core.requests import Sampling as Sampling
    from .core.requests import Usage as Usage
    from .core.results import AgentError as AgentError
    from .core.results import AgentResult as AgentResult
    from .core.results import Results as Results
    from .core.run_options import RunOptions as RunOptions
    from .core.run_options import StageOptions as StageOptions
    from .core.runtime import Runtime as Runtime
    from .core.scheduling import Scheduling as Scheduling
    from .core.sharing import Finding as Finding
    from .core.sharing import PrefixReport as PrefixReport
    from .core.spec import BatchSpec as BatchSpec
    from .core.work import Changes as Changes
    from .core.work import FileChange as FileChange
    from .data import SqlQuery as SqlQuery
    from .flows import Flow as Flow
    from .observe.telemetry.metrics import Metrics as Metrics
    from .observe.telemetry.traces import Traces as Traces
    from .runtimes import OpenCodeRuntime as OpenCodeRuntime
    from .runtimes import ProcessRuntime as ProcessRuntime
    from .swarm.pool import VLLMPool as VLLMPool
    from .swarm.response import Response as Response
    from .tools import MCP as MCP
    from .tools import Tool as Tool
