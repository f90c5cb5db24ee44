"""Runs whose workers are actors on the nodes of a Ray cluster."""

from .ray_run import RayRun, deployed_stages

__all__ = ["RayRun", "deployed_stages"]
