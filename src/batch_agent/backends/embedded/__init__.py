"""The embedded model: llama.cpp in a process of its own, behind the OpenAI HTTP API."""

from .model_cache import EmbeddedModelError
from .schema_hints import add_schema_hints
from .server import LocalServer

__all__ = ["EmbeddedModelError", "LocalServer", "add_schema_hints"]
