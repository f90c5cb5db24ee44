"""KV cache plugin for vLLM: keeps the contexts of waiting agents, and drops those of agents that ended."""

__version__ = "0.1.0"
