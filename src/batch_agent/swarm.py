"""Compatibility import: the names of Aurora Swarm, which live in `batch_agent.pools`."""

from .pools import *  # noqa: F403
from .pools import __all__ as __all__
