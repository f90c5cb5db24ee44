"""What an answer must be, and how a value is held against it."""

import json
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, NoReturn

import orjson

from ..core.agent_config import InvalidOutput, OutputType
from ..core.errors import SpecError
from ..core.schema import JsonSchema, without_titles
from ..core.validation import DEEPEST, is_too_deep

_SHOWN_PROBLEMS = 5
_SHOWN_CHARACTERS = 300


def output_type(schema: Any) -> OutputType | None:
    """The output type of a run: a Pydantic model, any other type, or a JSON schema as a dict. None and str: plain text.

    Raises SpecError for what cannot be one."""
    if schema is None or schema is str:
        return None
    return RawSchemaOutput(schema) if isinstance(schema, Mapping) else TypedOutput(schema)


class TypedOutput:
    """Any type that Pydantic understands; answers are real instances of it."""

    def __init__(self, schema: Any) -> None:
        from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter  # not for answers in prose

        try:
            if isinstance(schema, FunctionType):  # Pydantic would call it
                raise TypeError("a function is not a type")
            if isinstance(schema, str):  # Pydantic would look for a type of this name
                raise TypeError("a text is not a type")
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            self.json_schema: JsonSchema = without_titles(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            raise SpecError(
                f"output_schema must be a Pydantic model, a type such as list[str], or a JSON schema; got {schema!r}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def validate(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            # As JSON, because strict types take a date or an enum from nothing else.
            return self._adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise InvalidOutput(_problems((problem["loc"], problem["msg"]) for problem in found)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's validator may raise anything
            raise InvalidOutput(_problems([((), f"{type(error).__name__}: {error}")])) from error


class RawSchemaOutput:
    """A JSON schema; answers are plain data that fits it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema_rs  # as above

        self.json_schema: JsonSchema = dict(schema)
        try:
            self._validator = jsonschema_rs.validator_for(self.json_schema, retriever=_refuse)
        except ValueError as error:
            raise SpecError(f"output_schema is not a valid JSON schema: {str(error).splitlines()[0]}") from error

    def validate(self, value: Any) -> Any:
        problems = _unwritable(value) or _problems(
            (error.instance_path, error.message) for error in self._validator.iter_errors(value)
        )
        if problems:
            raise InvalidOutput(problems)
        return value


def _unwritable(value: Any) -> str:
    """Why a value could not be kept or written: most can, and that is found out soon."""
    try:
        orjson.dumps(value)
    except TypeError:
        if is_too_deep(value):
            return f"it is nested more than {DEEPEST} levels deep"
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "it holds half of a character"
    return ""


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched; put it under $defs")


def _problems(found: Iterable[tuple[Iterable[str | int], str]]) -> str:
    """For the model: a message may quote the whole answer, and a few problems are enough to go on."""
    shown = [
        f"{'.'.join(map(str, path)) or 'answer'}: {message[:_SHOWN_CHARACTERS]}"
        for (path, message), _ in zip(found, range(_SHOWN_PROBLEMS), strict=False)
    ]
    return "; ".join(shown)
