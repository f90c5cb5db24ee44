"""Parameters of a tool that comes with a JSON schema instead of a signature, such as a tool of an MCP server."""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema_rs
import orjson

from ...core.errors import SpecError
from ...core.schema import JsonSchema, without_titles
from . import BadArguments

_SHOWN_PROBLEMS = 5
_SHOWN_CHARACTERS = 300
_LONGEST_NAME = 64


class RawArguments:
    """The parameters of a tool that comes with a JSON schema; what fits it is passed on as it was written."""

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        """Raises SpecError for what is not a schema of an object, or refers to another document."""
        self.schema: JsonSchema = without_titles({"type": "object", "properties": {}} | dict(schema))
        if self.schema["type"] != "object":
            raise SpecError(f"Tool {name!r}: its parameters must be a JSON object; its schema says {schema['type']!r}.")
        try:
            self._validator = jsonschema_rs.validator_for(dict(self.schema), retriever=_refuse)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = str(error).splitlines()[0]
            raise SpecError(f"Tool {name!r}: its parameters are not described by a JSON schema: {reason}") from error

    def read(self, text: str) -> dict[str, Any]:
        """Raises BadArguments."""
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BadArguments(f"The arguments are not valid JSON ({error}): {text[:200]!r}") from error
        if not isinstance(data, dict):
            raise BadArguments(f"The arguments must be one JSON object, not {type(data).__name__}.")
        problems = [_problem(error) for error in self._validator.iter_errors(data)]
        if problems:
            raise BadArguments(f"The arguments do not fit: {'; '.join(problems[:_SHOWN_PROBLEMS])}")
        return data


def sound_name(name: str) -> str:
    """`name` in the letters that every server takes."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST_NAME]


def _problem(error: jsonschema_rs.ValidationError) -> str:
    return f"{'.'.join(map(str, error.instance_path)) or 'arguments'}: {error.message[:_SHOWN_CHARACTERS]}"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"it refers to {uri}; put the definition under $defs instead.")
