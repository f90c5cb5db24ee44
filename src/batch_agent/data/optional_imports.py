"""Imports of optional libraries."""

import importlib
from typing import Any

from ..core.errors import SpecError


def require(module: str, what: str, install: str = "'batch-agent[data]'") -> Any:
    """Imports an optional module. Raises SpecError that names what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(f"{what} needs a package: pip install {install} ({error}).") from None
