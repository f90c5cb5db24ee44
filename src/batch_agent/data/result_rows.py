"""Rows of results files: a result as JSON data, and lines of CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from pydantic import BaseModel

from ..core.images import as_image
from ..core.json import dumps
from ..core.results import AgentResult

_JSON = frozenset({str, int, bool, type(None)})


def as_row(result: AgentResult) -> dict[str, Any]:
    """A result as JSON data."""
    error, usage = result.error, result.usage
    row = {
        "index": result.index,
        "key": result.key,
        **({} if result.model is None else {"model": result.model}),
        **({} if result.sample is None else {"sample": result.sample}),
        "ok": result.ok,
        "status": result.status,
        "finish": result.finish,
        "input": result.input,
        "output": result.output,
        "error": {"kind": error.kind, "message": error.message, "retryable": error.retryable} if error else None,
        "turns": result.turns,
        "tool_calls": result.tool_calls,
        "usage": {
            "input": usage.input,
            "cached": usage.cached,
            "written": usage.all_written,
            "output": usage.output,
        },
        "lane": "+".join(usage.lanes),
        "cost": result.cost,
        "seconds": round(result.timing.total, 3),
    }
    if result.scores:
        row["scores"] = dict(result.scores)
    if result.artifacts:
        row["artifacts"] = result.artifacts
    if result.changes is not None:
        row["changes"] = result.changes
    if error is not None:
        row["text"] = result.text
    return {name: jsonable(value, by_alias=name != "input") for name, value in row.items()}


def jsonable(value: Any, *, by_alias: bool = True) -> Any:
    """JSON data of a value. Fields of models have their aliases, which are the names in the schema of the answers, or
    with `by_alias=False` their own names, which tasks use for inputs. Bytes that are not UTF-8 become base64, those of
    an image its size and digest; NaN and infinities become null."""
    if type(value) in _JSON:
        return value
    from pydantic_core import to_jsonable_python  # only needed when results are written

    try:
        return to_jsonable_python(value, by_alias=by_alias, fallback=_text, inf_nan_mode="null")
    except UnicodeEncodeError:  # a key with a lone surrogate
        value = _with_valid_keys(value)
    except UnicodeDecodeError:
        value = _with_named_images(value)
    except Exception:  # noqa: BLE001 - a computed field or a serializer of the user's model
        return _in_parts(value, by_alias=by_alias)
    return to_jsonable_python(value, by_alias=by_alias, fallback=_text, inf_nan_mode="null", bytes_mode="base64")


def named_fields(value: Any, *, by_alias: bool = True) -> dict[Any, Any]:
    """Fields of a model or a dataclass, including computed ones, under the names that `jsonable` gives them. A computed
    field that raises is None. Empty for other values."""
    if isinstance(value, BaseModel):
        values, computed = dict(value), type(value).model_computed_fields
    elif is_dataclass(value) and not isinstance(value, type):
        values, computed = {field.name: getattr(value, field.name) for field in fields(value)}, {}
    else:
        return {}
    for name in computed:
        try:
            values[name] = getattr(value, name)
        except Exception:  # noqa: BLE001 - code of the user's model
            values[name] = None
    if not by_alias:
        return values
    declared = getattr(type(value), "__pydantic_fields__", {})  # of a model, and of a dataclass of Pydantic
    aliases = {
        **{name: field.serialization_alias for name, field in declared.items()},
        **{name: field.alias for name, field in computed.items()},
    }
    return {aliases.get(name) or name: part for name, part in values.items()}


def _in_parts(value: Any, *, by_alias: bool) -> Any:
    """JSON data of a value with parts that cannot be converted, which become text."""
    value = named_fields(value, by_alias=by_alias) or value
    if isinstance(value, dict):
        return {str(jsonable(name)): jsonable(each, by_alias=by_alias) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(each, by_alias=by_alias) for each in value]
    return _text(value)


def _with_named_images(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_named_images(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_named_images(part) for part in value]
    image = as_image(value)
    return value if image is None else repr(image)


def _with_valid_keys(value: Any) -> Any:
    if isinstance(value, dict):
        valid = {replace_lone_surrogates(key) if isinstance(key, str) else key: each for key, each in value.items()}
        return {key: _with_valid_keys(each) for key, each in valid.items()}
    if isinstance(value, list | tuple):
        return [_with_valid_keys(each) for each in value]
    return value


def replace_lone_surrogates(text: str) -> str:
    """`text` with lone surrogates replaced, because UTF-8 cannot encode them."""
    return text.encode(errors="replace").decode()


def _text(value: Any) -> str:
    """`str` of a user's object, which may raise any exception."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a result is written whatever its input is
        return f"<{type(value).__name__}: {type(error).__name__} when its text was asked for>"


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode(errors="replace")


def cell(value: Any) -> Any:
    """A CSV cell: strings and numbers unchanged, missing values empty, everything else as JSON."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    plain = jsonable(value)
    return plain if isinstance(plain, str) else dumps(plain).decode()
