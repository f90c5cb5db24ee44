"""A task whose fields may be ordered: said once what is to be done, then the fields of each input.

What may be given as inputs, told by its look alone: nothing is opened.
"""

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .errors import SpecError


@dataclass(frozen=True, slots=True, init=False)
class Fields:
    """`Fields("Does the review fit the product?", "product", "description", "review")`.

    The order of the fields is the engine's: what many inputs share comes first, so that it is computed once. In a
    task that is a text, fields stay where they stand. No names: all fields that the first input has."""

    instruction: str
    names: tuple[str, ...] = field(default=())

    def __init__(self, instruction: str, *names: str) -> None:
        if not isinstance(instruction, str) or not instruction.strip():
            raise SpecError("Fields(...) begins with a text that says what each agent should do.")
        for name in names:
            if not isinstance(name, str) or not name:
                raise SpecError(f"Fields(...): a field is named by a text; got {name!r}.")
        if len(set(names)) < len(names):
            raise SpecError(f"Fields(...) names a field twice: {', '.join(names)}.")
        object.__setattr__(self, "instruction", instruction)
        object.__setattr__(self, "names", names)

    def __str__(self) -> str:
        """The same task as a text with its fields in the order in which they were named."""
        escaped = self.instruction.replace("{", "{{").replace("}", "}}")
        return "\n".join([escaped, "", *(f"{name}: {{{name}}}" for name in self.names)])

    def named(self, names: Iterable[str]) -> Self:
        """With these names, if it has none yet."""
        return self if self.names else type(self)(self.instruction, *names)


SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Of files that hold inputs."""
_TABLES = frozenset({"pandas", "polars", "pyarrow", "duckdb"})
_DATASETS = frozenset({"datasets.arrow_dataset", "datasets.iterable_dataset"})
"""In full: many people have a module `datasets` of their own."""
_LONGEST_PATH = 4096


def check_inputs(inputs: Any) -> None:
    """Raises SpecError."""
    if is_path(inputs) or table_library(inputs):
        return
    if isinstance(inputs, str | bytes | Mapping):
        raise SpecError(
            f"inputs must be a list of inputs, not one {type(inputs).__name__}: write inputs=[...].{_hint(inputs)}"
        )
    if not isinstance(inputs, Iterable | AsyncIterable):
        raise SpecError(f"inputs must be iterable; got {type(inputs).__name__}.")


def is_path(inputs: Any) -> bool:
    """Whether it names a file or a folder. A text does if it ends as files of inputs do, or has a slash."""
    if not isinstance(inputs, str):
        return isinstance(inputs, Path)
    if len(inputs) > _LONGEST_PATH or "\n" in inputs:
        return False
    return inputs.lower().endswith(SUFFIXES) or "/" in inputs or "\\" in inputs


def table_library(inputs: Any) -> str | None:
    """The library that a table, a column or a dataset is of: its classes are never imported here."""
    if isinstance(inputs, Mapping):  # such as all splits of a dataset
        return None
    modules = [kind.__module__ for kind in type(inputs).__mro__]
    if not _DATASETS.isdisjoint(modules):
        return "datasets"
    packages = (module.partition(".")[0].lstrip("_") for module in modules)
    return next((package for package in packages if package in _TABLES), None)


def _hint(inputs: Any) -> str:
    if isinstance(inputs, str):
        return f" A file is known by its suffix ({', '.join(SUFFIXES)}), a folder by a slash: 'texts/'."
    if type(inputs).__module__ == "datasets.dataset_dict":
        return f" Choose one of its splits: {', '.join(map(repr, inputs))}."
    return ""
