"""Runs whose workers are actors on the nodes of a Ray cluster."""

from .ray_run import RayRun

__all__ = ["RayRun"]
