"""Parameters of a tool that comes with a JSON schema instead of a signature, such as a tool of an MCP server."""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema_rs

from ...core.errors import SpecError
from ...core.schema import JsonSchema, without_titles
from . import BadArguments, parse_object

_MAX_PROBLEMS = 5
_MAX_MESSAGE_CHARS = 300
_MAX_NAME_CHARS = 64


class RawArguments:
    """Parameters from a JSON schema. Arguments that match it are passed on unchanged."""

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        """Raises SpecError if the schema is invalid, is not of an object, or refers to another document."""
        self.schema: JsonSchema = without_titles({"type": "object", "properties": {}} | dict(schema))
        if self.schema["type"] != "object":
            raise SpecError(f"Tool {name!r}: its parameters must be a JSON object; its schema says {schema['type']!r}.")
        try:
            self._validator = jsonschema_rs.validator_for(dict(self.schema), retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = str(error).splitlines()[0]
            raise SpecError(f"Tool {name!r}: its parameters are not a valid JSON schema: {reason}") from None

    def read(self, text: str) -> dict[str, Any]:
        """Raises BadArguments."""
        data = parse_object(text)
        problems = [_problem(error) for error in self._validator.iter_errors(data)]
        if problems:
            raise BadArguments(f"The arguments do not fit: {'; '.join(problems[:_MAX_PROBLEMS])}")
        return data


def sanitize_name(name: str) -> str:
    """`name` in the characters that every server accepts."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_MAX_NAME_CHARS]


def _problem(error: jsonschema_rs.ValidationError) -> str:
    return f"{'.'.join(map(str, error.instance_path)) or 'arguments'}: {error.message[:_MAX_MESSAGE_CHARS]}"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri}; put the definition under $defs instead.")
