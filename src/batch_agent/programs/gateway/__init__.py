"""HTTP server inside a run through which programs reach its model, in OpenAI's APIs or Anthropic's."""

from .gateway import Gateway, open_gateway

__all__ = ["Gateway", "open_gateway"]
