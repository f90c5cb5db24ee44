"""A function's arguments as a JSON schema for the model and a validator for what the model sends."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from ..core.errors import SpecError
from ..core.schema import JsonSchema, without_titles

_NOT_NAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class BadArguments(ValueError):
    """The arguments do not fit; the message is written for the model."""


class Arguments:
    """The named arguments of a function."""

    def __init__(self, function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None = None) -> None:
        self._model = _model(function, name, namespace)
        self.schema: JsonSchema = without_titles(self._model.model_json_schema())

    def read(self, text: str) -> dict[str, Any]:
        """Keyword arguments, each of its declared type. Raises BadArguments."""
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BadArguments(f"The arguments are not valid JSON ({error}): {text[:200]!r}") from error
        if not isinstance(data, dict):
            raise BadArguments(f"The arguments must be one JSON object, not {type(data).__name__}.")
        try:
            checked = self._model.model_validate(data)
        except ValidationError as error:
            shown = error.errors(include_url=False, include_context=False)[:5]
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in shown)
            raise BadArguments(f"The arguments do not fit: {problems}") from error
        return {field.alias or name: getattr(checked, name) for name, field in type(checked).model_fields.items()}


def describe(function: Callable[..., Any]) -> str:
    """What the docstring says the function does, without its arguments."""
    doc = parse_docstring(inspect.getdoc(function) or "")
    return "\n".join(part for part in (doc.short_description, doc.long_description) if part)


def _model(function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None) -> type[BaseModel]:
    hints = _hints(function, name, namespace)
    said = {param.arg_name: param.description for param in parse_docstring(inspect.getdoc(function) or "").params}
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in _NOT_NAMED:
            raise SpecError(f"Tool {name!r}: a model cannot name {str(parameter)!r}; use ordinary parameters.")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        # Fields are named by position and aliased, because a parameter may be called `schema` or `_x`.
        fields[f"field_{number}"] = (
            hints.get(parameter.name, Any),
            Field(default, alias=parameter.name, description=said.get(parameter.name)),
        )
    try:
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise SpecError(f"Tool {name!r}: its parameters cannot be described: {str(error).splitlines()[0]}") from error


def _hints(function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(namespace) if namespace else None, include_extras=True)
    except NameError as error:
        raise SpecError(f"Tool {name!r}: its type hint {error.name!r} is not defined where the tool is.") from error
