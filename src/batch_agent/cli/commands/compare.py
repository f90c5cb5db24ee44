"""batch-agent compare."""

from collections.abc import Sequence
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
from ...observe.score_file import save_comparisons
from ...observe.text.text_format import plural
from ...run.checkpoint_table import read_results
from ...scores.comparison import RunComparison, compare_results, comparison_lines
from ...scores.judge import is_judge
from ..checkpoint import model_checkpoints
from ..import_by_name import load_schema, load_scorers
from ..run_address import OptionalRunLocation, RunLocation, is_server_url, open_run, open_run_to_score
from ..stdout import write_stdout
from .report import check_is_run
from .report import report as write_report

Address = tuple[Path | str, str | None]
"""A directory, a file of results or a URL, and the name of the run on a server."""


def compare(
    before: RunLocation,
    after: OptionalRunLocation = None,
    /,
    *,
    run: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
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
        Checkpoint directory, also in an object store, the URL of a Redis server, or .jsonl file of results. Of a run
        with --models: alone, to compare its models.
    after
        The same of the other run.
    run
        Names of the runs at Redis servers, in the order of their URLs. Two names and one URL: both runs are there.
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
    addresses = _addresses([before] if after is None else [before, after], run or [])
    comparisons = _comparisons(addresses, scorers, output, field)
    if json:
        write_stdout([orjson.dumps([each.as_json() for each in comparisons], option=orjson.OPT_INDENT_2), b"\n"])
    else:
        for line in (line for each in comparisons for line in comparison_lines(each, changed)):
            print(safe_text(line))
    if report:
        _add_to_report(addresses[-1], comparisons)


def _addresses(locations: Sequence[Path | str], names: Sequence[str]) -> list[Address]:
    """Raises SpecError."""
    servers = [each for each in locations if is_server_url(each)]
    if len(locations) == len(servers) == 1 and len(names) == 2:
        return [(servers[0], name) for name in names]
    if len(names) != len(servers):
        given = f"{plural(len(servers), 'URL')} of Redis servers, and {plural(len(names), 'name')}"
        raise SpecError(f"compare needs the name of the run at each Redis server: --run NAME. Got {given}.")
    named = iter(names)
    return [(each, next(named) if is_server_url(each) else None) for each in locations]


def _comparisons(
    addresses: Sequence[Address], scorers: list[Any], output: Any, field: str | None
) -> list[RunComparison]:
    title, first = _scored(addresses[0], scorers, output)
    if len(addresses) == 2:
        other, last = _scored(addresses[1], scorers, output)
        return [compare_results(first, last, names=(title, other), field=field)]
    if len(first.by_model) < 2:
        raise SpecError(f"{title!r} has answers of one model only: name the run to compare it with.")
    return compare_models(first, field)


def _scored(address: Address, scorers: list[Any], output: Any) -> tuple[str, Results[Any]]:
    """The run's title and its results."""
    location, run = address
    if isinstance(location, Path) and location.is_file():
        title, results = str(location), _read_file(location)
    else:
        with open_run(location, run) as opened:
            if not model_checkpoints(opened.folder):
                opened.check_is_one("compare")
            title, results = opened.title, read_results(opened.folder, output, opened.max_retries())
    return title, results.scored(*scorers) if scorers else results


def _read_file(path: Path) -> Results[Any]:
    """Reads results written by `batch-agent run`, an export or `Results.to_jsonl`. Raises StoreError."""
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


def _add_to_report(address: Address, comparisons: list[RunComparison]) -> None:
    location, run = address
    if isinstance(location, Path) and location.is_file():
        raise SpecError("--report needs the checkpoint of the second run, which has a report; got a file.")
    with open_run_to_score(location, run) as opened:
        if opened.shared is None:
            check_is_run(opened.folder)
        save_comparisons(opened.folder, [each.as_json() for each in comparisons])
    write_report(location, run=run)
