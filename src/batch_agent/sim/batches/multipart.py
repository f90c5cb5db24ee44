"""Parser of multipart/form-data bodies."""

import re
from typing import NamedTuple

_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)
_NAME = re.compile(rb'[; ]name="([^"]*)"')
_FILENAME = re.compile(rb'filename="([^"]*)"')


class FormField(NamedTuple):
    value: bytes
    filename: str | None


def parse_form(content_type: bytes, body: bytes) -> dict[str, FormField]:
    """The fields by name. Raises ValueError."""
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith(b"multipart/form-data") or not found:
        raise ValueError("the body must be multipart/form-data with a boundary")
    fields: dict[str, FormField] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + found[1])[1:]:
        if part.startswith(b"--"):
            return fields
        head, separator, value = part.partition(b"\r\n\r\n")
        name, filename = _NAME.search(head), _FILENAME.search(head)
        if not separator or not name:
            raise ValueError("a part of the form has no name")
        fields[name[1].decode()] = FormField(value, filename[1].decode(errors="replace") if filename else None)
    raise ValueError("the form has no end")
