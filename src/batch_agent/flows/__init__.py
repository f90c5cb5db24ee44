"""Flows: consecutive stages of agents, without barriers between them."""

from .flow import Flow
from .map_reduce import run_with_map_reduce, run_with_reduce

__all__ = ["Flow", "run_with_map_reduce", "run_with_reduce"]
