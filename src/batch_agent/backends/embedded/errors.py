"""The one error of the embedded backend."""


class EmbeddedModelError(RuntimeError):
    """The embedded model cannot be used; the message says why and what to do next. Trying again does not help."""
