"""Output types: the schema of an answer, and the validation of values against it."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from operator import is_
from types import FunctionType
from typing import Any, NoReturn

import orjson

from ..core.agent_config import InvalidOutput, OutputType
from ..core.errors import SpecError
from ..core.json import WRITTEN_JSON, WrittenFloat
from ..core.schema import JsonSchema, without_titles
from ..core.validation import MAX_NESTING, is_too_deep

_MAX_PROBLEMS = 5
_MAX_PROBLEM_CHARS = 300
_TOO_DEEP = f"it is nested more than {MAX_NESTING} levels deep"
_HALF_CHARACTER = "it holds half of a character"


def output_type(schema: Any) -> OutputType | None:
    """Output type of a run: a Pydantic model, any other type, or a JSON schema as a dict. None and str: plain text.

    Raises SpecError if `schema` is none of these."""
    if schema is None or schema is str:
        return None
    return RawSchemaOutput(schema) if isinstance(schema, Mapping) else TypedOutput(schema)


class TypedOutput:
    """Output type from a Python type that Pydantic supports; answers are instances of it."""

    def __init__(self, schema: Any) -> None:
        from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter  # not needed for plain text

        try:
            if isinstance(schema, FunctionType):  # Pydantic would call it
                raise TypeError("a function is not a type")
            if isinstance(schema, str):  # Pydantic would resolve it as a forward reference
                raise TypeError("a string is not a type")
            if is_dataclass(schema) and not isinstance(schema, type):  # Pydantic would read its __qualname__
                raise TypeError("an instance is not a type")
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            self.json_schema: JsonSchema = without_titles(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            raise SpecError(
                f"output_schema must be a Pydantic model, a type such as list[str], or a JSON schema; got {schema!r}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        self._has_decimals = _has_decimals(self._adapter.core_schema)

    def validate(self, value: Any, agent_input: Any = None) -> Any:
        if self._has_decimals and (written := _with_digits(value)) is not value:
            with suppress(InvalidOutput):  # a strict float, which must be a number
                return self._validated(written, agent_input)
        return self._validated(value, agent_input)

    def validate_json(self, text: str, agent_input: Any = None) -> Any:
        if self._has_decimals:
            return self.validate(_loads(text), agent_input)
        return self._validated_json(text, agent_input)

    def _validated(self, value: Any, agent_input: Any) -> Any:
        """The value, validated as JSON: in strict mode, Pydantic accepts a string for a date or an enum only from
        JSON."""
        from pydantic_core import to_json

        try:
            text = to_json(value, inf_nan_mode="constants")
        except ValueError:
            raise InvalidOutput(_TOO_DEEP if is_too_deep(value) else _HALF_CHARACTER) from None
        return self._validated_json(text, agent_input)

    def _validated_json(self, text: str | bytes, agent_input: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(text, context={"input": agent_input})
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise InvalidOutput(_problems((problem["loc"], problem["msg"]) for problem in found)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's validator may raise anything
            raise InvalidOutput(_problems([((), f"{type(error).__name__}: {error}")])) from error


def _has_decimals(core_schema: Any) -> bool:
    if isinstance(core_schema, Mapping):
        return core_schema.get("type") == "decimal" or any(map(_has_decimals, core_schema.values()))
    return isinstance(core_schema, list | tuple) and any(map(_has_decimals, core_schema))


def _with_digits(value: Any) -> Any:
    """The value with the digits of its numbers as strings where a float has fewer: Pydantic reads numbers of JSON as
    floats, also those of a Decimal. The value itself if there are none."""
    if isinstance(value, WrittenFloat):
        return value.digits
    if isinstance(value, dict):
        parts = {name: _with_digits(part) for name, part in value.items()}
        return value if all(part is value[name] for name, part in parts.items()) else parts
    if isinstance(value, list):
        items = list(map(_with_digits, value))
        return value if all(map(is_, items, value)) else items
    return value


_KEYWORDS = frozenset({
    "$anchor", "$comment", "$defs", "$dynamicRef", "$id", "$ref", "$schema", "additionalItems",
    "additionalProperties", "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType", "default",
    "definitions", "dependencies", "dependentRequired", "dependentSchemas", "description", "else", "enum", "examples",
    "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems", "maxLength", "maxProperties",
    "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then", "title", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""A schema with none of them is most likely an object's fields without `properties`."""


class RawSchemaOutput:
    """Output type from a JSON schema; answers are plain data that fits it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema_rs  # imported late, as Pydantic above

        self.json_schema: JsonSchema = dict(schema)
        if schema.get("type") == "json_schema" or {"name", "schema"} <= schema.keys():
            raise SpecError("output_schema is a response format of OpenAI's API: pass only what its 'schema' contains.")
        try:
            self._validator = jsonschema_rs.validator_for(self.json_schema, retriever=_reject_reference)
        except ValueError as error:
            raise SpecError(f"output_schema is not a valid JSON schema: {str(error).splitlines()[0]}") from error
        if schema and not _KEYWORDS.intersection(schema):
            fields = ", ".join(f"{name!r}: {{'type': 'string'}}" for name in list(schema)[:3])
            raise SpecError(
                "output_schema has no keyword of JSON Schema, so any answer would fit it. For an object with these "
                f"fields: {{'type': 'object', 'properties': {{{fields}}}}}."
            )

    def validate_json(self, text: str, agent_input: Any = None) -> Any:
        return self.validate(_loads(text), agent_input)

    def validate(self, value: Any, agent_input: Any = None) -> Any:
        plain = _plain_json(value)
        problems = _problems((error.instance_path, error.message) for error in self._validator.iter_errors(plain))
        if problems:
            raise InvalidOutput(problems)
        return plain


def _loads(text: str) -> Any:
    """The value of which `text` is the JSON, with all digits of its numbers. Raises InvalidOutput."""
    try:
        return WRITTEN_JSON.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOutput(f"it is not JSON: {error}") from error


def _plain_json(value: Any) -> Any:
    """The value, if it can be stored as JSON, which orjson finds out fast. Raises InvalidOutput if it cannot."""
    try:
        orjson.dumps(value)
    except TypeError:
        if is_too_deep(value):
            raise InvalidOutput(_TOO_DEEP) from None
        text = json.dumps(value, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidOutput(_HALF_CHARACTER) from None
        return json.loads(text)  # without WrittenFloat
    return value


def _reject_reference(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema, and references are not fetched; put it under $defs")


def _problems(found: Iterable[tuple[Iterable[str | int], str]]) -> str:
    """Text of the first problems, for the model. Messages are cut, because they may quote the whole answer."""
    shown = [
        f"{'.'.join(map(str, path)) or 'answer'}: {message[:_MAX_PROBLEM_CHARS]}"
        for (path, message), _ in zip(found, range(_MAX_PROBLEMS), strict=False)
    ]
    return "; ".join(shown)
