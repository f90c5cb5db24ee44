"""What is asked on the command line of the agent that makes one answer of all results."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ..import_by_name import load_schema
from .help_groups import REDUCE


def _said(text: str) -> Parameter:
    return Parameter(help=text, group=REDUCE)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceArguments:
    """Of a run whose results are made into one answer; or, with nothing said, of one whose results are all there is."""

    reduce: Annotated[
        str | None,
        _said('Make all results into one answer, and how: "Sum up {n} reviews." Failed ones are shown as such.'),
    ] = None
    reduce_schema: Annotated[
        str | None, _said("What that answer must be: a JSON schema file, or a Pydantic model as module:Model.")
    ] = None
    reducer_model: Annotated[str | None, _said("The model that gives it; if not given, that of all agents.")] = None
    summary: Annotated[
        Path | None,
        _said("Where it is written; if not given, beside the results, as .summary.json or .summary.txt."),
    ] = None

    def options(self, out: Path) -> "ReduceSettings | None":
        """None where nothing is reduced; `out`: where the results are written. Raises SpecError for what cannot be
        read, what cannot be written, and what nobody would heed."""
        if self.reduce is None:
            self._check_is_unsaid()
            return None
        schema = load_schema(self.reduce_schema, "--reduce-schema") if self.reduce_schema else None
        named = {} if self.reducer_model is None else {"model": self.reducer_model}
        summary = self.summary or out.with_name(f"{out.name}.summary.{'json' if self.reduce_schema else 'txt'}")
        if summary.absolute() == out.absolute():
            raise SpecError("--summary and --out are the same file: name another one for the answer.")
        _check_writable(summary)
        options = {"task": self.reduce, "output_schema": schema, "plan_changed": "rerun", **named}
        return ReduceSettings(options, summary, is_text=schema is None)

    def said(self) -> dict[str, Any]:
        """All of it, to be given again."""
        return {name: getattr(self, name) for name in self.__slots__}

    def _check_is_unsaid(self) -> None:
        for name in ("reduce_schema", "reducer_model", "summary"):
            if getattr(self, name) is not None:
                raise SpecError(
                    f"--{name.replace('_', '-')} is about the answer that is made of all results: say how it is made "
                    'with --reduce, as in --reduce "Sum up {n} reviews."'
                )


@dataclass(frozen=True, slots=True)
class ReduceSettings:
    """A reduce that can begin."""

    options: Mapping[str, Any]
    """As `Flow.reduce` takes them. One in other words is no mistake: the results stay, and are reduced anew."""
    summary: Path
    """Where its answer is written."""
    is_text: bool


def reduce_options_from_saved(options: Mapping[str, Any]) -> tuple[ReduceArguments, dict[str, Any]]:
    """What an earlier command asked, and what else it said."""
    ours = {name: value for name, value in options.items() if name in ReduceArguments.__slots__}
    return ReduceArguments(**ours), {name: value for name, value in options.items() if name not in ours}


def _check_writable(path: Path) -> None:
    """Before anything is paid for."""
    problem = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            problem = "its folder is read-only"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise SpecError(f"--summary {str(path)!r} cannot be written: {problem}.")
