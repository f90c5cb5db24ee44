"""Values in the places of a prompt."""

import re

from ..core.errors import SpecError


def fill_template(template: str, **values: str) -> str:
    """`{name}` becomes the value of that name. A value is not looked at again, and every other brace stays as it is."""
    places = "|".join(re.escape(_place(name)) for name in values)
    return re.sub(places, lambda found: values[found[0][1:-1]], template)


def require_placeholder(what: str, template: str, name: str) -> None:
    """Raises SpecError for a template that has no place for what it is about."""
    if _place(name) not in template:
        raise SpecError(f"The {what} {template!r} has no place for what belongs into it: write {_place(name)} there.")


def _place(name: str) -> str:
    return f"{{{name}}}"
