"""batch-agent score."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ...evaluation.outcome import score as score_results
from ...observe.score_file import metric_lines
from ...observe.text.flow_summary import usage_parts
from ..checkpoint import check_is_one, model_checkpoints
from ..import_by_name import load_schema, load_scorers
from ..object_files import Location, open_run_folder
from ..signals import print_lines


def score(
    folder: Location,
    *,
    score: Annotated[list[str], Parameter(consume_multiple=True)],
    schema: str | None = None,
    backend: str | None = None,
    model: str | None = None,
) -> None:
    """Scores the answers, keeps the scores in the checkpoint, and prints the metrics.

    Parameters
    ----------
    folder
        Checkpoint directory.
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
    with open_run_folder(folder) as opened:
        if not model_checkpoints(opened.path):
            check_is_one(opened.path, "score", opened.name)
        scorers = load_scorers(score, Path.cwd())
        options = {"backend": backend, "model": model}
        results = asyncio.run(score_results(opened.path, scorers, options, load_schema(schema) if schema else None))
        for line in metric_lines(opened.path):
            print(line)
    print_lines(
        f"Judge {name}: {'; '.join(usage_parts(verdicts.usage, verdicts.cost))}."
        for name, verdicts in results.judges.items()
    )
