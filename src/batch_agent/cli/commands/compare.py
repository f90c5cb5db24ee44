"""batch-agent compare."""

from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import Parameter

from ...core.errors import ErrorKind, SpecError, StoreError
from ...core.json import loads
from ...core.requests import Usage
from ...core.results import AgentError, AgentResult, Timing
from ...core.safe_text import safe_text
from ...data.results import Results
from ...evaluation.outcome import compare_models
from ...observe.report.html import write_report
from ...observe.score_file import save_comparisons
from ...run.checkpoint_table import read_results
from ...scores.comparison import RunComparison, compare_results, comparison_lines
from ...scores.judge import is_judge
from ..checkpoint import check_is_one, model_checkpoints
from ..import_by_name import load_schema, load_scorers
from ..stdout import write_stdout
from .report import check_is_run


def compare(
    before: Path,
    after: Path | None = None,
    /,
    *,
    field: str | None = None,
    score: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    schema: str | None = None,
    changed: int = 10,
    json: bool = False,
    report: bool = False,
) -> None:
    """Prints what changed from one run to the other.

    Parameters
    ----------
    before
        Checkpoint directory, or .jsonl file of results. Of a run with --models: alone, to compare its models.
    after
        The same of the other run.
    field
        Field of the answers to compare. By default, whole answers.
    score
        Scorers to apply to both, in addition to the scores that they have: as for batch-agent score, without judges.
    schema
        The Pydantic model of the answers as module:Model, if your own scorer needs its type.
    changed
        Changed inputs to show.
    json
        Print everything as JSON.
    report
        Add the comparison to the report of the second run.
    """
    scorers = load_scorers(score or [], Path.cwd())
    if any(map(is_judge, scorers)):
        raise SpecError("compare asks no model: score both runs with batch-agent score --score judge:RUBRIC first.")
    output = load_schema(schema) if schema else None
    comparisons = _comparisons(before, after, scorers, output, field)
    if json:
        write_stdout([orjson.dumps([each.as_json() for each in comparisons], option=orjson.OPT_INDENT_2), b"\n"])
    else:
        for line in (line for each in comparisons for line in comparison_lines(each, changed)):
            print(safe_text(line))
    if report:
        _add_to_report(after or before, comparisons)


def _comparisons(
    before: Path, after: Path | None, scorers: list[Any], output: Any, field: str | None
) -> list[RunComparison]:
    first = _scored(before, scorers, output)
    if after is not None:
        names = str(before), str(after)
        return [compare_results(first, _scored(after, scorers, output), names=names, field=field)]
    if len(first.by_model) < 2:
        raise SpecError(f"{str(before)!r} has answers of one model only: name the run to compare it with.")
    return compare_models(first, field)


def _scored(run: Path, scorers: list[Any], output: Any) -> Results[Any]:
    results = _read_file(run) if run.is_file() else _read_checkpoint(run, output)
    return results.scored(*scorers) if scorers else results


def _read_checkpoint(folder: Path, output: Any) -> Results[Any]:
    if not model_checkpoints(folder):
        check_is_one(folder, "compare", str(folder))
    return read_results(folder, output)


def _read_file(path: Path) -> Results[Any]:
    """Results that `batch-agent run`, an export or `Results.to_jsonl` wrote. Raises StoreError."""
    try:
        rows = [loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        return Results(sorted(map(_result, rows), key=lambda each: (each.index, each.model or "", each.sample or 0)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{str(path)!r} is not a .jsonl file of results: {type(error).__name__}: {error}.") from error


def _result(row: dict[str, Any]) -> AgentResult[Any]:
    error = row["error"]
    usage = row.get("usage") or {}
    return AgentResult(
        row["index"],
        row["key"],
        row["input"],
        row["output"],
        error=None if error is None else AgentError(ErrorKind(error["kind"]), error["message"], error["retryable"]),
        usage=Usage(usage.get("input", 0), usage.get("cached", 0), usage.get("output", 0)),
        timing=Timing(total=row.get("seconds") or 0.0),
        cost=row.get("cost"),
        sample=row.get("sample"),
        model=row.get("model"),
        scores=row.get("scores") or {},
    )


def _add_to_report(folder: Path, comparisons: list[RunComparison]) -> None:
    if folder.is_file():
        raise SpecError("--report needs the checkpoint of the second run, which has a report; got a file.")
    check_is_run(folder)
    save_comparisons(folder, [each.as_json() for each in comparisons])
    print(f"Report: {write_report(folder)}")
