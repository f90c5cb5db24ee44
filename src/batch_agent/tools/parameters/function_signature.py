"""Parameters of a tool from a function's signature: a JSON schema for the model, and a validator for what it sends."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.schema import JsonSchema, without_titles
from ..result_text import describe_error
from ..tool_context import ToolContext
from . import BadArguments, parse_object

_NOT_NAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    name: str
    hint: Any
    default: Any
    description: str | None
    written: str
    """The type and the default as text. Equal ones may differ in it and in their schemas: `int | str` and `str | int`,
    True and 1."""


def read_parameters(
    function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None = None
) -> tuple[Parameter, ...]:
    """The parameters of a tool's function. Raises SpecError for one that cannot be passed by name."""
    hints = _hints(function, name, namespace)
    parameters = _parameters(function, name)
    descriptions = {param.arg_name: param.description for param in _docstring(function).params}
    return tuple([_described(each, hints.get(each.name, Any), descriptions.get(each.name)) for each in parameters])


def _described(parameter: inspect.Parameter, hint: Any, description: str | None) -> Parameter:
    default = parameter.default
    return Parameter(parameter.name, hint, default, description, f"{hint!r} {default!r}")


def context_parameter(parameters: Sequence[Parameter], name: str) -> str | None:
    """Name of the parameter that is annotated as a ToolContext; None if there is none. Raises SpecError for two."""
    found = [parameter.name for parameter in parameters if _takes_context(parameter.hint)]
    if len(found) > 1:
        raise SpecError(f"Tool {name!r}: {' and '.join(map(repr, found))} are both a ToolContext; keep one of them.")
    return found[0] if found else None


def _takes_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


class Arguments:
    """Arguments of a function's parameters, as their type hints say."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        """`parameters`: without those that the engine fills in, which the model does not see."""
        try:
            self._model, self.schema = _model_and_schema(name, tuple(parameters))
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            reason = str(error).splitlines()[0]
            raise SpecError(f"Tool {name!r}: its parameters have no JSON schema: {reason}") from None

    def read(self, text: str) -> dict[str, Any]:
        """Keyword arguments, each of its declared type. Raises BadArguments."""
        data = parse_object(text)
        try:
            checked = self._model.model_validate(data)
        except ValidationError as error:
            shown = error.errors(include_url=False, include_context=False)[:5]
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in shown)
            raise BadArguments(f"The arguments do not fit: {problems}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a validator of a user's type may raise anything
            raise BadArguments(f"The arguments do not fit: {describe_error(error)}") from error
        return {field.alias or name: getattr(checked, name) for name, field in type(checked).model_fields.items()}


class _QuietSchema(GenerateJsonSchema):
    """Omits defaults that JSON cannot express; they still work as defaults."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass


def describe(function: Callable[..., Any]) -> str:
    """Description from the docstring, without its arguments."""
    doc = _docstring(function)
    return "\n".join(part for part in (doc.short_description, doc.long_description) if part)


def _model_and_schema(name: str, parameters: tuple[Parameter, ...]) -> tuple[type[BaseModel], JsonSchema]:
    """What reads the arguments, and what the model sees of them. Kept for programs that define the same tools for each
    run, unless a type or a default cannot be compared."""
    try:
        hash(parameters)
    except TypeError:
        return _make_model(name, parameters)
    return _kept_model(name, parameters)


def _make_model(name: str, parameters: tuple[Parameter, ...]) -> tuple[type[BaseModel], JsonSchema]:
    # Fields are named by position and aliased, because a parameter may be called `schema` or `_x`.
    fields: dict[str, Any] = {f"field_{number}": (each.hint, _field(each)) for number, each in enumerate(parameters)}
    model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return model, without_titles(model.model_json_schema(schema_generator=_QuietSchema))


_kept_model = functools.lru_cache(maxsize=64)(_make_model)


def _field(parameter: Parameter) -> Any:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    if not parameter.description:
        return Field(default, alias=parameter.name)
    return Field(default, alias=parameter.name, description=parameter.description)


def _docstring(function: Callable[..., Any]) -> Docstring:
    return _parsed_docstring(inspect.getdoc(_plain(function)) or "")


@functools.lru_cache(maxsize=64)
def _parsed_docstring(text: str) -> Docstring:
    """Cached, because a definition needs it twice, and programs define the same tools for each run."""
    return parse_docstring(text)


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that the model fills in, without those that a partial has filled in."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise SpecError(f"Tool {name!r}: its signature cannot be read ({error}).") from None
    for parameter in parameters:
        if parameter.name == "self":
            raise SpecError(f"Tool {name!r}: it has no instance to be called on; pass the method of an instance.")
        if parameter.kind in _NOT_NAMED:
            raise SpecError(f"Tool {name!r}: a model cannot pass {str(parameter)!r} by name; use ordinary parameters.")
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in bound]


def _hints(function: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(
            _plain(function), localns=dict(namespace) if namespace else None, include_extras=True
        )
    except NameError as error:
        raise SpecError(f"Tool {name!r}: its type hint {error.name!r} is not defined in its scope.") from None
    except (TypeError, SyntaxError, AttributeError) as error:
        raise SpecError(f"Tool {name!r}: its type hints cannot be read: {error}") from None


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that carries the hints and the docstring."""
    if isinstance(function, functools.partial):
        return _plain(function.func)
    return function if inspect.isroutine(function) else type(function).__call__
