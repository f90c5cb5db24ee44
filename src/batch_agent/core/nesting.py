"""Nesting of plain data. Code that goes through it level by level, ours or a library's, has a limit."""

from typing import Any

DEEPEST = 200
"""Levels that every library in use can take."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and dicts are nested deeper than DEEPEST."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
