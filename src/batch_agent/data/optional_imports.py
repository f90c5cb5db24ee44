"""Libraries that not everybody has."""

import importlib
from typing import Any

from ..core.errors import SpecError


def require(module: str, what: str, install: str = "'batch-agent[data]'") -> Any:
    """The module, imported now. Raises SpecError that says what needs it, and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(f"{what} needs a package: pip install {install} ({error}).") from error
