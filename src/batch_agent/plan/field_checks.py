"""Checks of a task against its inputs before any request: which braces are fields, and which fields are missing."""

import re
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from ..core.errors import SpecError
from .field_paths import nearest
from .template import BadInput, Template, is_name, names_in

_MAX_INPUTS = 1_000
"""Maximum number of inputs that are searched for a field named like text in braces."""
_MIN_SIMILARITY = 0.75
"""Similarity above which text in braces is taken for a misspelt field."""
_CODE = re.compile(r"""["']|[,;](?:\s|$)""")
"""Text in braces that contains quotes or several members: `{text, label}`, `{text: string; n: number}`."""
_IN_BRACES = re.compile(r"\{ ?([^\W\d]\w*) ?\}")


def resolve_uncertain_fields(template: Template, inputs: Sequence[Any]) -> Template:
    """The template, with text in braces turned into a field if any of these inputs has a field of that name. For plain
    strings, the only name in braces is the field."""
    uncertain = set(template.uncertain_fields)
    if not uncertain or not inputs:
        return template
    if isinstance(inputs[0], str):
        names = list(filter(is_name, uncertain))
        return template.with_fields(names) if len(names) == 1 and not template.certain_cells else template
    sample = islice(inputs, _MAX_INPUTS)
    return template.with_fields({name for value in sample for name in uncertain.intersection(names_in(value))})


def check_first_input(template: Template, value: Any) -> list[str]:
    """Checks the task against the first input. Returns the names in braces that are sent as text. Raises SpecError if
    the task does not fit."""
    try:
        template.render(value)
    except BadInput as error:
        raise SpecError(f"Input 0: {error}") from error.__cause__
    return check_names(template, [] if isinstance(value, str) else list(names_in(value)), "Input 0: ")


def check_names(template: Template, names: Collection[str], where: str) -> list[str]:
    """Checks text in braces against the names of fields alone. Returns the names in braces that are sent as text.
    Raises SpecError if a field was probably meant."""
    uncertain = [path for path in dict.fromkeys(template.uncertain_fields) if path not in names]
    for text in uncertain:
        if meant := _meant(text, names):
            raise SpecError(
                f"{where}The task has {{{text}}}, which is not a field of the input. Did you mean {{{meant}}}? Write "
                f"{{{{{text}}}}} if the braces are meant as text."
            )
    return list(filter(is_name, uncertain))


def escaped_fields(template: Template, names: Collection[str]) -> list[str]:
    """Fields that occur in the task only as escaped braces: `{{text}}`, which other template languages read as a
    field."""
    text = "".join([part if isinstance(part, str) else "\0" for part in template.parts])
    return sorted(set(_IN_BRACES.findall(text)).intersection(names).difference(template.fields))


def _meant(text: str, names: Collection[str]) -> str | None:
    if is_name(text) and (found := nearest(text, names, _MIN_SIMILARITY)):
        return found
    if text.strip() in names:
        return text.strip()
    first = re.match(r"\w+", text)
    return first[0] if first and first[0] in names and not _CODE.search(text) else None
