"""The embedded model: llama.cpp in a process of its own, behind the OpenAI HTTP API."""

from batch_agent.backends.embedded.errors import EmbeddedModelError
from batch_agent.backends.embedded.schema import guided
from batch_agent.backends.embedded.server import LocalServer

__all__ = ["EmbeddedModelError", "LocalServer", "guided"]
