"""Pools of endpoints that serve one model: many prompts in a request, and patterns over many agents."""

from ..backends.endpoints.hostfile import Endpoint, parse_hostfile
from .aggregators import best_of, concat, failure_report, majority_vote, statistics, structured_merge, top_k
from .blackboard import Blackboard, blackboard
from .patterns import broadcast, broadcast_and_reduce, fan_out_fan_in, map_gather, scatter_gather
from .pipeline import Stage, pipeline, run_pipeline
from .pool import VLLMPool
from .pool_protocol import Pool
from .response import Response
from .tree_reduce import tree_reduce

AgentEndpoint = Endpoint
"""The name of `Endpoint` in Aurora Swarm."""

__all__ = [
    "AgentEndpoint",
    "Blackboard",
    "Endpoint",
    "Pool",
    "Response",
    "Stage",
    "VLLMPool",
    "best_of",
    "blackboard",
    "broadcast",
    "broadcast_and_reduce",
    "concat",
    "failure_report",
    "fan_out_fan_in",
    "majority_vote",
    "map_gather",
    "parse_hostfile",
    "pipeline",
    "run_pipeline",
    "scatter_gather",
    "statistics",
    "structured_merge",
    "top_k",
    "tree_reduce",
]
