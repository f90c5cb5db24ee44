"""The embedded model: llama.cpp in a process of its own, behind the OpenAI HTTP API."""

from .local_server import LocalServer
from .model_cache import EmbeddedModelError
from .schema_hints import add_schema_hints

__all__ = ["EmbeddedModelError", "LocalServer", "add_schema_hints"]
