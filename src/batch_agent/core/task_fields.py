"""Tasks with fields that the engine may reorder, and validation of the type of `inputs=`, without opening anything."""

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from .errors import SpecError
from .fast_dataclass import dataclass


@dataclass(frozen=True, slots=True, init=False)
class Fields:
    """Task with an instruction and named fields: `Fields("Does the review fit the product?", "product", "review")`.

    The engine orders the fields: what many inputs share comes first, so that it is computed once. In a task that is a
    string, fields keep their position. Without names, all fields of the first input are used."""

    instruction: str
    names: tuple[str, ...] = field(default=())

    def __init__(self, instruction: str, *names: str) -> None:
        if not isinstance(instruction, str) or not instruction.strip():
            raise SpecError("Fields(...) needs an instruction first: a string that says what each agent should do.")
        for name in names:
            if not isinstance(name, str) or not name:
                raise SpecError(f"Fields(...): the name of a field must be a non-empty string; got {name!r}.")
        if len(set(names)) < len(names):
            raise SpecError(f"Fields(...) names a field twice: {', '.join(names)}.")
        object.__setattr__(self, "instruction", instruction)
        object.__setattr__(self, "names", names)

    def __str__(self) -> str:
        """The task as a template, with its fields in the order of their names."""
        escaped = self.instruction.replace("{", "{{").replace("}", "}}")
        return "\n".join([escaped, "", *(f"{name}: {{{name}}}" for name in self.names)])

    def named(self, names: Iterable[str]) -> Self:
        """A copy with these names, or itself if it has names."""
        return self if self.names else type(self)(self.instruction, *names)


SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Suffixes of files that hold inputs."""
STDIN = "-"
"""Name of standard input as the source of inputs."""
_TABLES = frozenset({"pandas", "polars", "pyarrow", "duckdb"})
_DATASETS = frozenset({"datasets.arrow_dataset", "datasets.iterable_dataset"})
"""Full module names: projects often have a module `datasets` of their own."""
_RAY_DATASET = "ray.data.dataset"
_MAX_PATH_LENGTH = 4096
_OBJECT_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "memory"})


def check_inputs(inputs: Any) -> None:
    """Raises SpecError for inputs of an unsupported type."""
    if is_path(inputs) or table_library(inputs):
        return
    if isinstance(inputs, str | bytes | Mapping):
        raise SpecError(
            f"inputs must be a list of inputs, not one {type(inputs).__name__}: write inputs=[...].{_hint(inputs)}"
        )
    if not isinstance(inputs, Iterable | AsyncIterable):
        raise SpecError(f"inputs must be iterable; got {type(inputs).__name__}.")


def is_path(inputs: Any) -> bool:
    """Whether inputs are the path of a file or folder: a Path, or a string with a known suffix, a slash or a wildcard;
    or `-`, standard input."""
    if not isinstance(inputs, str):
        return isinstance(inputs, Path)
    if len(inputs) > _MAX_PATH_LENGTH or "\n" in inputs:
        return False
    name = inputs.lower().removesuffix(".gz")
    return name.endswith(SUFFIXES) or "/" in inputs or "\\" in inputs or "*" in inputs or inputs == STDIN


def is_url(inputs: Any) -> bool:
    """Whether inputs are the address of a file to download."""
    return isinstance(inputs, str) and inputs.lower().startswith(("http://", "https://"))


def is_object_url(value: Any) -> bool:
    """Whether a value is the URL of an object or folder in an object store, such as s3://bucket/folder/."""
    if not isinstance(value, str) or "://" not in value:
        return False
    return value.partition("://")[0].lower() in _OBJECT_SCHEMES


def table_library(inputs: Any) -> str | None:
    """Name of the library of a table, column or dataset, found without importing it; None for other objects."""
    if type(inputs) is list or isinstance(inputs, Mapping):  # a mapping: such as all splits of a dataset
        return None
    modules = [kind.__module__ for kind in type(inputs).__mro__]
    if not _DATASETS.isdisjoint(modules):
        return "datasets"
    if _RAY_DATASET in modules:
        return "ray"
    packages = (module.partition(".")[0].lstrip("_") for module in modules)
    return next((package for package in packages if package in _TABLES), None)


def _hint(inputs: Any) -> str:
    if isinstance(inputs, str):
        return f" A file is recognized by its suffix ({', '.join(SUFFIXES)}), a folder by a slash: 'texts/'."
    if type(inputs).__module__ == "datasets.dataset_dict":
        return f" Choose one of its splits: {', '.join(map(repr, inputs))}."
    return ""
