"""A simulated engine: an OpenAI-compatible server that behaves like a paged-KV engine, with scripted answers.

`SimServer` runs one in its own process; `serve` runs one in this process until it is told to stop.
"""

from batch_agent.sim.config import FaultRates, SimConfig
from batch_agent.sim.process import SimServer
from batch_agent.sim.script import Script
from batch_agent.sim.server import serve

__all__ = ["FaultRates", "Script", "SimConfig", "SimServer", "serve"]
