"""batch-agent score."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...evaluation.outcome import score as score_results
from ...observe.score_file import metric_lines
from ...observe.text.flow_summary import usage_parts
from ..checkpoint import model_checkpoints
from ..import_by_name import load_schema, load_scorers
from ..run_address import RunLocation, open_run_to_score
from ..signals import print_lines


def score(
    folder: RunLocation,
    *,
    run: str | None = None,
    score: Annotated[list[str], Parameter(consume_multiple=True)],
    schema: str | None = None,
    backend: str | None = None,
    model: str | None = None,
) -> None:
    """Scores the answers, keeps the scores in the checkpoint, and prints the metrics.

    Parameters
    ----------
    folder
        Checkpoint directory, also in an object store, or the URL of a Redis server, which then keeps the scores.
    run
        Name of the run, if FOLDER is the URL of a Redis server.
    score
        exact:FIELD, contains:FIELD, numeric:FIELD, regex:PATTERN, json_fields:FIELD, judge:RUBRIC (text or a file), or
        your own as module:function.
    schema
        The run's Pydantic model as module:Model, if your own scorer needs its type.
    backend
        Model server of judges.
    model
        Model of judges.
    """
    with open_run_to_score(folder, run) as opened:
        if not model_checkpoints(opened.folder):
            opened.check_is_one("score")
        scorers = load_scorers(score, Path.cwd())
        options: dict[str, Any] = {"backend": backend, "model": model}
        if opened.shared is not None:
            options |= {"store": opened.shared.store, "run_id": opened.shared.name, "lease": opened.shared.lease}
        results = asyncio.run(score_results(opened.folder, scorers, options, load_schema(schema) if schema else None))
        for line in metric_lines(opened.folder):
            print(line)
    print_lines(
        f"Judge {name}: {'; '.join(usage_parts(verdicts.usage, verdicts.cost))}."
        for name, verdicts in results.judges.items()
    )
