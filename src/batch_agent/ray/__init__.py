"""Where the workers of a run are: on the nodes of a Ray cluster."""

from .ray_run import RayRun

__all__ = ["RayRun"]
