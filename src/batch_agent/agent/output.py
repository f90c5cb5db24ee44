"""What an answer must be, and how a value is held against it."""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import orjson
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..core.errors import SpecError
from ..core.rules import InvalidOutput, OutputType
from ..core.schema import JsonSchema, without_titles

_SHOWN_PROBLEMS = 5


def output_type(schema: Any) -> OutputType | None:
    """The output type of a run: a Pydantic model, any other type, or a JSON schema as a dict. None and str: plain text.

    Raises SpecError for what cannot be one."""
    if schema is None or schema is str:
        return None
    return RawSchemaOutput(schema) if isinstance(schema, Mapping) else TypedOutput(schema)


class TypedOutput:
    """Any type that Pydantic understands; answers are real instances of it."""

    def __init__(self, schema: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            self.json_schema: JsonSchema = without_titles(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            raise SpecError(
                f"output_schema must be a Pydantic model, a type such as list[str], or a JSON schema; got {schema!r}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def validate(self, value: Any) -> Any:
        try:
            return self._adapter.validate_json(orjson.dumps(value))
        except ValidationError as error:
            raise InvalidOutput(_problems(error.errors(include_url=False, include_context=False))) from error


class RawSchemaOutput:
    """A JSON schema; answers are plain data that fits it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.json_schema: JsonSchema = dict(schema)
        try:
            self._validator = jsonschema_rs.validator_for(self.json_schema)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            raise SpecError(f"output_schema is not a valid JSON schema: {error}") from error

    def validate(self, value: Any) -> Any:
        problems = [
            f"{_place(error.instance_path)}: {error.message}"
            for error, _ in zip(self._validator.iter_errors(value), range(_SHOWN_PROBLEMS), strict=False)
        ]
        if problems:
            raise InvalidOutput("; ".join(problems))
        return value


def _problems(errors: list[ErrorDetails]) -> str:
    shown = [f"{_place(error['loc'])}: {error['msg']}" for error in errors[:_SHOWN_PROBLEMS]]
    hidden = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {hidden} more" if hidden > 0 else "")


def _place(path: Any) -> str:
    return ".".join(map(str, path)) or "answer"
