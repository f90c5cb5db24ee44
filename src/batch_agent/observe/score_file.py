"""Score file of a checkpoint: the scores of its answers, for exports, reports and comparisons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..atomic_file import atomic_write
from ..core.errors import StoreError
from ..core.json import dumps, loads
from ..scores.metrics import Metric, metrics_of
from ..scores.score_book import AnswerScores

SCORES, COMPARISONS = "scores.json", "comparisons.json"
MODEL_PREFIX = "model."
"""Prefix of the directory names of models, in the checkpoint of a run with `models=`."""
_MAX_CHANGED = 200
"""Maximum number of changed inputs that the report shows."""


def save_scores(folder: Path, scores: AnswerScores) -> None:
    """Replaces the scores of these scorers in a checkpoint, and keeps the scores of others. Raises StoreError for a
    file that cannot be read, and SpecError for one that cannot be written."""
    path = folder / SCORES
    data = merge_scores(_read(path), scores, str(path))
    with atomic_write(path, is_private=True) as file:
        file.write(data)


def merge_scores(known: bytes | None, scores: AnswerScores, name: str = SCORES) -> bytes:
    """A score file with these scores added to `known`, the file so far. Raises StoreError."""
    names = {name for found in scores.values() for name in found}
    merged: dict[tuple[str, int], dict[str, float | None]] = {}
    for answer, found in _scores(_parse(known, name)).items():
        merged[answer] = {name: score for name, score in found.items() if name not in names}
    for answer, found in scores.items():
        merged[answer] = {**merged.get(answer, {}), **found}
    rows = [[key, sample, found] for (key, sample), found in merged.items() if found]
    return dumps({"format": 1, "scores": rows})


def load_scores(folder: Path) -> AnswerScores:
    """The scores of a checkpoint; empty if it has no score file. Raises StoreError for a file that cannot be read."""
    return _scores(_load(folder / SCORES))


def _scores(found: Mapping[str, Any]) -> AnswerScores:
    return {(key, sample): scores for key, sample, scores in found.get("scores", ())}


def scores_by_model(folder: Path) -> dict[str, AnswerScores]:
    """The scores of a checkpoint by model. The model is "" for a run without `models=`. Raises StoreError."""
    found = {"": folder, **{each.parent.name: each.parent for each in sorted(folder.glob(f"*/{SCORES}"))}}
    return {
        unquote(name.removeprefix(MODEL_PREFIX)): load_scores(own)
        for name, own in found.items()
        if not name or name.startswith(MODEL_PREFIX)
    }


def recorded_metrics(folder: Path) -> dict[str, dict[str, Metric]]:
    """Metrics of the scores in a checkpoint, by model (with `models=`) and scorer. Raises StoreError."""
    metrics = {
        model: metrics_of((key, each) for (key, _), each in scores.items())
        for model, scores in scores_by_model(folder).items()
    }
    return {model: each for model, each in metrics.items() if each}


def score_columns(folder: Path, answers: Sequence[tuple[str, str, int] | None]) -> dict[str, list[float | None]]:
    """Score columns by scorer, for the page of a report; empty if the file cannot be read. `answers`: model, key and
    sample of each row; None for a row without an answer."""
    try:
        known = scores_by_model(folder)
    except StoreError:
        return {}
    found = [known.get(each[0], {}).get(each[1:], {}) if each is not None else {} for each in answers]
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: [scores.get(name) for scores in found] for name in names}


def metric_lines(folder: Path) -> list[str]:
    """A line for each metric of a checkpoint."""
    return [
        f"Score {f'{model} ' if model else ''}{metric}."
        for model, metrics in recorded_metrics(folder).items()
        for metric in metrics.values()
    ]


def save_comparisons(folder: Path, comparisons: Sequence[Mapping[str, Any]]) -> None:
    """Stores comparisons with other runs or between models, for the report. Raises SpecError for a file that cannot be
    written."""
    with atomic_write(folder / COMPARISONS, is_private=True) as file:
        file.write(dumps({"format": 1, "comparisons": comparisons}))


def load_comparisons(folder: Path) -> list[Mapping[str, Any]]:
    """The stored comparisons. Raises StoreError."""
    return list(_load(folder / COMPARISONS).get("comparisons", ()))


def evaluation_json(folder: Path) -> dict[str, Any]:
    """Metrics and comparisons of a checkpoint, for the page of its report; empty if its files cannot be read."""
    try:
        return _evaluation(folder)
    except StoreError:
        return {"metrics": [], "comparisons": []}


def _evaluation(folder: Path) -> dict[str, Any]:
    metrics = [
        {"model": model, **metric.as_json()}
        for model, by_name in recorded_metrics(folder).items()
        for metric in by_name.values()
    ]
    comparisons = [
        {**each, "changed": each["changed"][:_MAX_CHANGED], "changed_inputs": len(each["changed"])}
        for each in load_comparisons(folder)
    ]
    return {"metrics": metrics, "comparisons": comparisons}


def _load(path: Path) -> dict[str, Any]:
    return _parse(_read(path), str(path))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _parse(data: bytes | None, name: str) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        found = loads(data)
    except ValueError as error:
        raise StoreError(f"{name!r} cannot be read: {error}.") from error
    return found if isinstance(found, dict) else {}
