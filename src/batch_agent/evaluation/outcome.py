"""Outcome of an evaluation: scores that need all answers, kept for exports, the report and later comparisons."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cluster.coordinator_address import run_id_of
from ..core.errors import BackendError, BatchAgentError, SpecError
from ..core.results import AgentResult
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..data import open_results
from ..data.inputs import print_notice
from ..data.results import Results
from ..observe.report.html import REPORT, write_report
from ..observe.score_file import save_comparisons, save_scores
from ..run.checkpoint_table import read_results
from ..scores.comparison import RunComparison, compare_results
from ..scores.judge import Judge, is_judge
from ..scores.score_book import scores_by_answer
from ..scores.scorer import scorers_of
from .model_runs import model_folder
from .verdicts import Verdicts, judge_results, spec_of


def has_outcome(spec: BatchSpec) -> bool:
    """Whether anything remains to be done after the last answer."""
    return spec.evaluation.models is not None or bool(_judges(scorers_of(spec.evaluation.score)))


def check_judges(spec: BatchSpec) -> None:
    """Raises SpecError for judges that cannot run, before anything is sent."""
    for judge in _judges(scorers_of(spec.evaluation.score)):
        if spec.evaluation.models is not None and judge.model is None:
            raise SpecError(
                f"Judge {judge.name!r} needs a model of its own where there are several: judge(..., model=...)."
            )
        spec_of(judge, [("", "")], {"backend": spec.backend, "model": spec.model, "lane": spec.lane})


async def complete(spec: BatchSpec, results: Results, began: float) -> Results:
    """The results with the scores of judges, which are also written to the checkpoint and to `out`; for several models,
    also compares them with the first one. `began`: start of the run, by `time.monotonic`. An exhausted budget leaves
    answers unscored. Raises StoreError, and RunStopped with the results if the backend of a judge is lost."""
    folder, judges = spec.checkpoint_dir, _judges(scorers_of(spec.evaluation.score))
    if spec.evaluation.models is not None:
        order = {model: at for at, model in enumerate(spec.evaluation.models)}
        results.sort(key=lambda each: (each.index, order[each.model or ""], each.sample or 0))
    if judges:
        try:
            results = await _judged(results, judges, _options(spec, results, began), folder)
        except (BackendError, RunStopped) as error:
            stopped = RunStopped(error.kind, f"The answers are complete, but a judge failed: {error}")
            stopped.results = list(results)
            raise stopped from error
        if spec.out is not None:
            await asyncio.to_thread(_rewrite, spec.out, results)
    if folder is not None:
        await asyncio.to_thread(_keep, folder, results, [each.name for each in judges])
    return results


async def score(
    source: Results | str | Path, scorers: Sequence[Any], options: Mapping[str, Any], output_schema: Any = None
) -> Results:
    """Scores results, or the results in a checkpoint, where the scores are then kept. `options`: options of judges, as
    for `judge_results`. Raises SpecError, StoreError and, if there are judges, like a run."""
    made, folder = scorers_of(scorers), None if isinstance(source, Results) else Path(source)
    if not made:
        raise SpecError("score needs at least one scorer, such as exact('label').")
    if isinstance(source, Results):
        results = source
    else:
        results = await asyncio.to_thread(read_results, Path(source), output_schema)
    judges = _judges(made)
    if any(each.backend is None for each in judges) and options.get("backend") is None:
        raise SpecError("A judge needs a model: pass backend=, or judge(..., backend=...).")
    scored = results.scored(*(each for each in made if not is_judge(each)))
    scored.judges = results.judges
    if judges:
        scored = await _judged(scored, judges, options, folder)
    if folder is not None:
        await asyncio.to_thread(_keep, folder, scored, [each.name for each in made])
    return scored


def compare_models(results: Results, field: str | None = None) -> list[RunComparison]:
    """Comparisons of each model with the first one. Raises SpecError."""
    first, *others = results.by_model.items()
    return [compare_results(first[1], each, names=(first[0], model), field=field) for model, each in others]


async def _judged(
    results: Results, judges: Sequence[Judge], options: Mapping[str, Any], folder: Path | None
) -> Results:
    made, scored = dict(results.judges), list[AgentResult](results)
    for judge in judges:
        try:
            verdicts = await judge_results(judge, results, options, folder)
        except SpecError as error:  # the budget does not pay for one more request: everything else was checked before
            print_notice(f"Judge {judge.name!r} did not run: {error}")
            verdicts = Verdicts([None] * len(results), Results())
        made[judge.name] = verdicts.results
        scored = [
            replace(each, scores={**each.scores, judge.name: score})
            for each, score in zip(scored, verdicts.scores, strict=True)
        ]
    complete = Results(scored, results.scheduling, lambda: results.prefix)
    complete.judges = made
    return complete


def _judges(scorers: Sequence[Any]) -> list[Judge]:
    return [each for each in scorers if isinstance(each, Judge)]


def _options(spec: BatchSpec, results: Results, began: float) -> dict[str, Any]:
    """Options of a run's judges: its backend and model, and the rest of its budget."""
    spending, usage = spec.spending, results.usage
    limits: dict[str, Any] = {"prices": spending.prices}
    if spending.max_total_tokens is not None:
        limits["max_total_tokens"] = max(1, spending.max_total_tokens - usage.input - usage.output)
    if spending.max_usd is not None:
        limits["max_usd"] = max(1e-9, spending.max_usd - (results.cost or 0.0))
    if spending.deadline is not None:
        limits["deadline"] = max(0.001, spending.deadline - (time.monotonic() - began))
    given: dict[str, Any] = {
        "model": spec.model,
        "lane": spec.lane,
        "max_inflight": spec.limits.max_inflight,
        "rpm": spec.limits.rpm,
        "tpm": spec.limits.tpm,
        "log_requests": spec.log_requests,
    }
    if spec.distribution.store is not None and spec.checkpoint_dir is None:
        given |= {
            "store": spec.distribution.store,
            "run_id": run_id_of(spec),
            "lease": spec.distribution.lease,
        }
    return {"backend": spec.backend, **{name: each for name, each in given.items() if each is not None}, **limits}


def _rewrite(out: Path | str, results: Results) -> None:
    with open_results(out) as file:
        for result in results:
            file.write(result)


def _keep(folder: Path, results: Results, names: Sequence[str]) -> None:
    """Stores scores and comparisons of models in the checkpoint, and rewrites its report. Raises SpecError."""
    by_model = results.by_model
    for model, each in by_model.items():
        if names:
            own = model_folder(folder, model) if model else folder
            save_scores(own, scores_by_answer(each, names))
    if len(by_model) > 1:
        with suppress(SpecError):  # all agents of a model have failed
            save_comparisons(folder, [each.as_json() for each in compare_models(results)])
    if (folder / REPORT).exists():
        with suppress(OSError, BatchAgentError):  # the results do not depend on it
            write_report(folder)
