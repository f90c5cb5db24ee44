"""BatchAgent's additions to a vLLM server. They use what clients know about the next use of a context."""

__version__ = "0.1.0"
