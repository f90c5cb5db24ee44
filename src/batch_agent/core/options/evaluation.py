"""Options of an evaluation: several answers for each input, several models, and scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SpecError
from ..fast_dataclass import dataclass
from ..validation import is_whole
from .backend_settings import BackendSettings

_MAX_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How many answers each input gets, from which models, and how they are scored."""

    samples: int = 1
    """Answers for each input. They run one after the other, so that they share their whole prompt; with `seed`, each
    has a seed of its own."""
    models: Sequence[str] | Mapping[str, str | BackendSettings] | None = None
    """Models that answer every input, to compare them: names on the backend, or a dict of names and their backends."""
    score: Any = ()
    """What an answer is worth: a scorer such as exact("label"), its name such as "exact:label", a function of the
    answer and the input, or a list of these: docs/evaluation.md."""

    def __post_init__(self) -> None:
        if not is_whole(self.samples) or not 1 <= self.samples <= _MAX_SAMPLES:
            raise SpecError(f"samples must be an integer from 1 to {_MAX_SAMPLES}; got {self.samples!r}.")
        if self.models is not None:
            object.__setattr__(self, "models", _checked_models(self.models))
        is_list = isinstance(self.score, Sequence) and not isinstance(self.score, str)
        given = () if self.score is None else tuple(self.score) if is_list else (self.score,)
        for each in given:
            if not isinstance(each, str) and not callable(each):
                raise SpecError(
                    "score must be scorers such as exact('label'), their names, or functions of the answer and the "
                    f"input; got {each!r}."
                )
        object.__setattr__(self, "score", given)


def _checked_models(models: Any) -> Any:
    is_mapping = isinstance(models, Mapping)
    if not is_mapping and (isinstance(models, str) or not isinstance(models, Sequence)):
        raise SpecError(f"models must be a list of model names, or a dict of names and backends; got {models!r}.")
    texts = [
        *models,
        *(each for each in (models.values() if is_mapping else ()) if not isinstance(each, BackendSettings)),
    ]
    if not models or not all(isinstance(each, str) and each for each in texts):
        raise SpecError(f"models must be a list of model names, or a dict of names and backends; got {models!r}.")
    if len(set(models)) < len(models):
        raise SpecError(f"models must be different models; got {models!r}.")
    return dict(models) if is_mapping else tuple(models)
