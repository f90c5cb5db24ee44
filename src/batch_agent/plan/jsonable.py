"""Conversion of values to JSON data, deterministic across processes."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..core.images import Image, ImageData, as_image
from ..core.schema import is_model


def to_jsonable(value: Any) -> Any:
    """The value as JSON data. Raises RecursionError for a value that contains itself, and any exception of an object's
    `__str__`."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, ImageData):
        return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_model(value):
        return to_jsonable(value.model_dump())
    if isinstance(value, Mapping):
        return {_key(key): to_jsonable(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):  # its order differs between processes
        return sorted(map(to_jsonable, value), key=repr)
    if isinstance(value, list | tuple):
        return [to_jsonable(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields(value)}
    return _leaf(value)


def _key(key: Any) -> str:
    return key if type(key) is str else str(_leaf(key))


def _leaf(value: Any) -> Any:
    """Converts dates, other numbers, bytes and enums in the same way as Pydantic."""
    if (image := as_image(value)) is not None:
        return _image_fields(image)
    from pydantic_core import to_jsonable_python  # rarely needed

    try:
        return to_jsonable_python(value, fallback=str)
    except ValueError:  # bytes that are not UTF-8
        return str(value)


def _image_fields(image: Image) -> dict[str, Any]:
    """The fields of an image without its bytes."""
    options = {"max_side": image.max_side, "page": image.page}
    return {"image": image.name, **{name: value for name, value in options.items() if value is not None}}
