"""A server inside a run, through which programs reach its model in the words of OpenAI or of Anthropic."""

from .gateway import Gateway, open_gateway

__all__ = ["Gateway", "open_gateway"]
