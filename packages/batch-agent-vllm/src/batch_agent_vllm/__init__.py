"""BatchAgent's additions to a vLLM server: what its clients know about the next use of a context, put to use."""

__version__ = "0.1.0"
