"""A simulated engine: an OpenAI-compatible server that behaves like a paged-KV engine, with scripted answers.

`SimServer` runs one in its own process; `serve` runs one in this process until it is stopped.
"""

from .listener import serve
from .process import SimServer
from .sim_config import BatchConfig, FaultRates, RateLimits, Script, SimConfig

__all__ = ["BatchConfig", "FaultRates", "RateLimits", "Script", "SimConfig", "SimServer", "serve"]
