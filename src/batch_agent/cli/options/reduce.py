"""Command-line options of the reduce stage, which combines all results into one answer."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.results import OnResult
from ...flows import Flow
from ..checkpoint import MAP, REDUCE
from ..import_by_name import load_schema
from .help_groups import REDUCE as REDUCE_GROUP


def _option(text: str) -> Parameter:
    return Parameter(help=text, group=REDUCE_GROUP)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceArguments:
    """Options of the reduce stage, as given on the command line. Without `reduce`, there is no such stage."""

    reduce: Annotated[
        str | None,
        _option('Task that combines all results into one answer, such as "Sum up {n} reviews".'),
    ] = None
    reduce_schema: Annotated[
        str | None, _option("Schema of that answer: a JSON schema file, or a Pydantic model as module:Model.")
    ] = None
    reducer_model: Annotated[str | None, _option("Model that writes it. By default, the model of the agents.")] = None
    summary: Annotated[
        Path | None,
        _option("File to write it to. By default, OUT.summary.json with a schema, else OUT.summary.txt."),
    ] = None

    def settings(self, out: Path | str) -> "ReduceSettings | None":
        """Validated settings for a run that writes its results to `out`; None without a reduce.

        Raises SpecError for a schema that cannot be read, a summary that cannot be written, or an option without
        effect."""
        if self.reduce is None:
            self._check_unset()
            return None
        schema = load_schema(self.reduce_schema, "--reduce-schema") if self.reduce_schema else None
        suffix = f"summary.{'json' if self.reduce_schema else 'txt'}"
        summary = self.summary or (Path(suffix) if isinstance(out, str) else out.with_name(f"{out.name}.{suffix}"))
        if isinstance(out, Path) and summary.absolute() == out.absolute():
            raise SpecError("--summary and --out are the same file. Choose another file for the summary.")
        _check_writable(summary)
        options = stage_options(self.reduce, schema, self.reducer_model)
        return ReduceSettings(options, summary, is_text=schema is None)

    def to_dict(self) -> dict[str, Any]:
        """All options by name, as a checkpoint stores them."""
        return {name: getattr(self, name) for name in self.__slots__}

    def _check_unset(self) -> None:
        for name in ("reduce_schema", "reducer_model", "summary"):
            if getattr(self, name) is not None:
                raise SpecError(
                    f"--{name.replace('_', '-')} needs --reduce, the task that combines all results, such as "
                    '--reduce "Sum up {n} reviews."'
                )


@dataclass(frozen=True, slots=True)
class ReduceSettings:
    """Validated settings of a reduce stage."""

    options: Mapping[str, Any]
    """Options of `Flow.reduce`. If they have changed since the checkpoint, only the reduce runs again."""
    summary: Path
    """File to which the answer is written."""
    is_text: bool


def stage_options(task: str, schema: Any, model: str | None) -> dict[str, Any]:
    """Options of the reduce stage."""
    named = {} if model is None else {"model": model}
    return {"task": task, "output_schema": schema, "plan_changed": "rerun", **named}


def reduced_flow(options: Mapping[str, Any], reduce: Mapping[str, Any], on_result: OnResult | None = None) -> Flow:
    """The flow of a run with a reduce. `options`: options of `BatchAgent.run`. `reduce`: options of the reduce
    stage."""
    shared = dict(options)
    map_options = {name: shared.pop(name) for name in ("task", "tools", "output_schema")}
    flow = Flow(shared.pop("inputs"), **shared).map(MAP, **map_options, on_result=on_result)
    return flow.reduce(REDUCE, **reduce)


def reduce_options_from_saved(options: Mapping[str, Any]) -> tuple[ReduceArguments, dict[str, Any]]:
    """Splits a saved command into the options of this group and its other options."""
    ours = {name: value for name, value in options.items() if name in ReduceArguments.__slots__}
    return ReduceArguments(**ours), {name: value for name, value in options.items() if name not in ours}


def _check_writable(path: Path) -> None:
    """Raises SpecError before any request is sent."""
    problem = "it is a directory" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            problem = "its directory is read-only"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise SpecError(f"--summary {str(path)!r} cannot be written: {problem}.")
