"""Placeholders of a prompt."""

import re

from ..core.errors import SpecError


def fill_template(template: str, **values: str) -> str:
    """Replaces each `{name}` by its value. Values are not parsed again, and all other braces stay unchanged."""
    pattern = "|".join(re.escape(_placeholder(name)) for name in values)
    return re.sub(pattern, lambda found: values[found[0][1:-1]], template)


def require_placeholder(what: str, template: str, name: str) -> None:
    """Raises SpecError for a template without the placeholder."""
    if _placeholder(name) not in template:
        raise SpecError(f"The {what} {template!r} has no placeholder {_placeholder(name)}: add it.")


def _placeholder(name: str) -> str:
    return f"{{{name}}}"
