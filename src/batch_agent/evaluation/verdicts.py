"""Verdicts of a judge on the answers of a run, kept next to the answers' checkpoint."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..cluster.coordinator_address import coordinator_of
from ..core.fast_dataclass import dataclass
from ..core.results import AgentResult
from ..core.spec import BatchSpec
from ..data.results import Results
from ..engine.result_stream import ResultStream
from ..run import runner
from ..run.setup import RunSetup
from ..scores.judge import Judge
from ..scores.scorer import text_of

JUDGE_PREFIX = "judge."
"""Prefix of the directory names of judges, in the checkpoint of a run."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """A judge's verdicts on the answers of a run."""

    scores: list[float | None]
    """One score per result, in order; None for a failed agent, or if the judge failed."""
    results: Results
    """The judge's own results, one for each distinct answer."""


async def judge_results(
    judge: Judge, results: Sequence[AgentResult], options: Mapping[str, Any], folder: Path | None
) -> Verdicts:
    """Judges each answer. `options`: options of the judge's run, unless the judge has its own; with `store` and the
    `run_id` of the answers, the verdicts are kept on that server. `folder`: checkpoint of the answers. Raises like a
    run."""
    cases = [_case(result) if result.ok else None for result in results]
    different = list(dict.fromkeys(case for case in cases if case is not None))
    if not different:
        return Verdicts([None] * len(results), Results())
    spec = spec_of(judge, different, options, folder)
    drive = partial(runner.run, RunSetup.validate(spec, None), coordinator=coordinator_of(spec))
    async with ResultStream(drive) as stream:
        verdicts = Results(sorted([each async for each in stream], key=lambda each: each.index))
    by_case = {case: judge.score(each.output) for case, each in zip(different, verdicts, strict=True) if each.ok}
    return Verdicts([None if case is None else by_case.get(case) for case in cases], verdicts)


def spec_of(
    judge: Judge, cases: Sequence[tuple[str, str]], options: Mapping[str, Any], folder: Path | None = None
) -> BatchSpec:
    """The spec of a judge's run over inputs and their answers, as text. Raises SpecError."""
    own = {"model": judge.model, "backend": judge.backend, **judge.options}
    name = f"{JUDGE_PREFIX}{quote(judge.name, safe='')}"
    if "store" in options:
        options, folder = {**options, "run_id": f"{options['run_id']}.{name.replace('%', '_')}"}, None
    return BatchSpec.of(
        task=judge.task,
        inputs=[{"input": question, "answer": answer} for question, answer in cases],
        output_schema=judge.schema,
        checkpoint_dir=None if folder is None else folder / name,
        plan_changed="rerun",
        **{**options, **{name: value for name, value in own.items() if value is not None}},
    )


def _case(result: AgentResult) -> tuple[str, str]:
    return text_of(result.input), text_of(result.output)
