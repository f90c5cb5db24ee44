"""Model of the page: the view of a run as plain data."""

import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ...core.run_reports import Scheduling
from ...version import __version__
from ..score_file import evaluation_json, score_columns
from ..text.prefix import shared_results_line
from ..text.summary import pace_line
from .run_view import RunView
from .savings import savings
from .stage_view import StageCounts, StageView
from .timeline import ANSWERED, FAILED, GENERATING, IN_PROGRESS, TOOLS, WAITING

FORMAT = 1


def model_of(
    view: RunView, *, title: str, began: float | None, now: float, is_running: bool, is_closed: bool
) -> dict[str, Any]:
    """`began`, `now`: seconds since the epoch. `is_closed`: whether the last process closed the log."""
    shown = _shown(view)
    counts = _counts(view, shown, is_running=is_running)
    turns = sum((stage.used.usage for stage in view.stages.values()), view.summaries)
    tools = view.tools.all()
    return {
        "format": FORMAT,
        "title": title,
        "state": "running" if is_running else "finished" if _is_done(view, counts, is_closed) else "ended early",
        "began": began,
        "seconds": round(view.seconds, 3),
        "processes": [round(at, 3) for at in view.processes],
        "now": round(now, 3),
        "version": __version__,
        "stages": [stage.as_json(counts[stage.number], shown.__contains__) for stage in view.stages.values()],
        "outside_agents": {"input": view.outside_agents.input, "output": view.outside_agents.output},
        "workers": view.workers.as_json(),
        "throughput": _throughput(view, counts, is_running=is_running),
        "series": view.series.as_json(),
        "activity": view.timeline.activity.as_json(view.seconds),
        "timeline": view.timeline.as_json(view.seconds, shown),
        "results": view.row_keys(shown) | view.results.as_json(shown),
        "distributions": {name: each.as_json() for name, each in view.distributions.items()}
        | {"tool": view.tools.durations.as_json()},
        "tools": [tool.as_json() for tool in tools],
        "limits": list(view.limits),
        "pauses": list(view.pauses),
        "steered": list(view.steered),
        "endpoints": list(view.endpoints),
        "scheduling": None if view.scheduling is None else _scheduling(view.scheduling),
        "savings": [each.as_json() for each in savings(turns, tools, view.repeats, view.scheduling)],
    }


def final_model(view: RunView, folder: Path, began: float) -> dict[str, Any]:
    """The final model of a process that has written the whole log in this directory."""
    now = time.time()
    found = model_of(view, title=folder.name, began=began, now=now, is_running=False, is_closed=True)
    return with_evaluation(found, view, folder)


def with_evaluation(model: dict[str, Any], view: RunView, folder: Path) -> dict[str, Any]:
    """Adds the scores, metrics and comparisons in the checkpoint `folder` to the model."""
    scores = score_columns(folder, view.answers(_shown(view)))
    results = {**model["results"], "scores": scores} if scores else model["results"]
    return {**model, "results": results, "evaluation": evaluation_json(folder)}


def _shown(view: RunView) -> Collection[int]:
    """Rows of the agents to show, without those that moved to another worker. If a stage has more agents than inputs,
    the inputs or the task have changed, and only agents of the last process are shown."""
    changed = {stage.number for stage, total in _final_totals(view) if stage.agents > total}
    timeline, rows = view.timeline, range(len(view.timeline))
    if not changed and 0 not in timeline.last_process:
        return rows
    last = timeline.last_process
    return dict.fromkeys(
        row for row in rows if last[row] == timeline.process or (last[row] and timeline.stage[row] not in changed)
    )


def _final_totals(view: RunView) -> Iterator[tuple[StageView, int]]:
    """Stages whose number of inputs is final, with that number. The number of a later stage is final once the previous
    stage has finished."""
    timeline = view.timeline
    done = Counter(
        timeline.stage[row]
        for row, outcome in enumerate(timeline.outcome)
        if outcome != IN_PROGRESS and timeline.last_process[row] == timeline.process
    )
    is_final = False
    for stage in view.stages.values():
        total = stage.queued if is_final else stage.inputs
        if total is not None:
            yield stage, total
        is_final = total is not None and done[stage.number] >= total


def _counts(view: RunView, shown: Collection[int], *, is_running: bool) -> list[StageCounts]:
    """Counts of each stage."""
    counts = [StageCounts() for _ in view.stages]
    timeline = view.timeline
    for row in shown:
        count, outcome = counts[timeline.stage[row]], timeline.outcome[row]
        count.started += 1
        count.answered += outcome == ANSWERED
        count.failed += outcome == FAILED
        count.resumed += timeline.restored_by[row] == timeline.process
        if is_running and outcome == IN_PROGRESS:
            state = timeline.state[row]
            count.waiting += state == WAITING
            count.generating += state == GENERATING
            count.tools += state == TOOLS
    return counts


def _is_done(view: RunView, counts: list[StageCounts], is_closed: bool) -> bool:
    for stage in view.stages.values():
        count = counts[stage.number]
        done = count.answered + count.failed
        if done < count.started or (not is_closed if stage.total is None else done < stage.total):
            return False
    return bool(view.stages)


def _throughput(view: RunView, counts: list[StageCounts], *, is_running: bool) -> dict[str, float | None]:
    if not is_running:
        done = view.distributions["agent"].count
        return {"per_second": round(done / view.seconds, 3) if view.seconds else None, "eta": None}
    view.throughput.update(view.seconds, view.done)
    rate = view.throughput.rate
    known = [stage.inputs for stage in view.stages.values()]
    totals = [total for total in known if total is not None]
    left = sum(totals) - sum(count.answered + count.failed for count in counts)
    can_tell = rate and totals and len(totals) == len(known)
    return {
        "per_second": round(rate, 3) if rate else None,
        "eta": round(max(left, 0) / rate, 1) if rate and can_tell else None,
    }


def _scheduling(how: Scheduling) -> dict[str, Any]:
    return {
        "kv_tokens": how.kv_tokens,
        "kv_limit": how.kv_limit,
        "max_residents": how.max_residents,
        "evictions": how.evictions,
        "overcommitted": how.overcommitted,
        "cache_misses": how.cache_misses,
        "lanes": None if how.lanes is None else str(how.lanes) or None,
        "pace": pace_line(how.pace) if how.pace is not None and how.pace.delayed else None,
        "shared_results": None if how.shared_results is None else shared_results_line(how.shared_results),
    }
