"""Runs whose workers are actors on the nodes of a Ray cluster."""

from .ray_run import RayRun, open_coordinators

__all__ = ["RayRun", "open_coordinators"]
