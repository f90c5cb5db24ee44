"""Options whose values are tables: `--extra` and `--prices`, given as NAME=VALUE or as a JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ...core.errors import SpecError
from ...core.options.backend_settings import BackendSettings, NamedBackend, backend_from_table, is_backend_url
from ...core.validation import suggestion


def parse_extra(values: Sequence[str]) -> dict[str, Any]:
    """Request fields from `min_p=0.1` or `{"min_p": 0.1}`. A value that is not JSON is text. Raises SpecError."""
    found: dict[str, Any] = {}
    for text in values:
        found |= _object(text, "--extra") if text.lstrip().startswith("{") else _pair(text)
    return found


def parse_prices(values: Sequence[str]) -> dict[str, Any]:
    """Prices by model from `MODEL=INPUT,CACHED,OUTPUT`, optionally with `,WRITTEN,WRITTEN_HOUR`, or from a JSON object.
    Raises SpecError."""
    found: dict[str, Any] = {}
    for text in values:
        found |= _object(text, "--prices") if text.lstrip().startswith("{") else _price(text)
    return found


def parse_backends(values: Sequence[str]) -> dict[str, BackendSettings]:
    """Backends by name from JSON objects, which are the tables [backends.NAME] of a file. Raises SpecError."""
    found: dict[str, BackendSettings] = {}
    for text in values:
        tables = _object(text, "--backends")
        if not isinstance(tables, dict):
            raise SpecError(f'--backends {text!r}: expected a JSON object such as {{"prod": {{"url": "openai://"}}}}.')
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise SpecError(f"backends.{name} must be a table with a url, such as [backends.{name}] in batch.toml.")
            found[name] = backend_from_table(name, table)
    return found


def named_backend(name: str, known: Mapping[str, BackendSettings]) -> NamedBackend:
    """The backend with this name. A URL is its own name. Raises SpecError for an unknown name."""
    if name in known or is_backend_url(name) or not known:
        return known.get(name, name)
    raise SpecError(f"backend {name!r} is neither a URL nor one of {', '.join(known)}.{suggestion(name, known)}")


def parse_models(values: Sequence[str]) -> list[str] | dict[str, str]:
    """Models from names, or from `NAME=BACKEND` pairs. Raises SpecError."""
    pairs = [text.partition("=") for text in values]
    if not any(mark for _, mark, _ in pairs):
        return list(values)
    if not all(mark and backend for _, mark, backend in pairs):
        raise SpecError("--models: name the backend of each model, as in small=vllm://host:8000 large=openai://.")
    return {name: backend for name, _, backend in pairs}


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SpecError(f"{option} {text!r} is not valid JSON: {error}.") from error
    return found


def _pair(text: str) -> dict[str, Any]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise SpecError(f"--extra {text!r}: expected NAME=VALUE, such as min_p=0.1, or a JSON object.")
    try:
        return {name: orjson.loads(value)}
    except orjson.JSONDecodeError:
        return {name: value}


def _price(text: str) -> dict[str, list[float]]:
    model, _, numbers = text.rpartition("=")
    try:
        price = [float(number) for number in numbers.split(",")]
    except ValueError:
        price = []
    if not model or len(price) not in (3, 5):
        raise SpecError(
            f"--prices {text!r}: expected MODEL=INPUT,CACHED,OUTPUT in dollars for a million tokens, such as "
            "my-model=0.5,0.1,2, or MODEL=INPUT,CACHED,OUTPUT,WRITTEN,WRITTEN_HOUR, or a JSON object."
        )
    return {model: price}
