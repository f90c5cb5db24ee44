"""Judge: a scorer that asks a model whether an answer meets a rubric."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, NoReturn

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.validation import is_whole

_TASK = """\
Grade an answer by this rubric.

Rubric:
{rubric}

{question}

Input of the answer:
{{input}}

Answer:
{{answer}}"""
_QUESTION = "First give your reason, in one or two sentences. Then decide whether the answer meets the rubric."
_SCALE = "First give your reason, in one or two sentences. Then give a score from {low} (worst) to {high} (best)."


@dataclass(frozen=True, slots=True)
class Judge:
    """Scorer whose judgements are agents of their own. It runs after the answers, and its verdicts are kept in the
    checkpoint."""

    rubric: str
    name: str = "judge"
    scale: tuple[int, int] | None = None
    """Lowest and highest score; None: the score tells whether the answer meets the rubric."""
    model: str | None = None
    """Model of the judge; None: the model of the run."""
    backend: Any = None
    """Backend of that model; None: the backend of the run."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of its run, such as temperature."""

    def __post_init__(self) -> None:
        if not isinstance(self.rubric, str) or not self.rubric.strip():
            raise SpecError("judge needs a rubric: a text that says what a good answer is.")
        if self.scale is not None:
            is_pair = isinstance(self.scale, tuple | list) and len(self.scale) == 2 and all(map(is_whole, self.scale))
            if not is_pair or self.scale[0] >= self.scale[1]:
                raise SpecError(f"scale must be the lowest and the highest score, such as (1, 5); got {self.scale!r}.")

    def __call__(self, output: Any, row: Any, /) -> NoReturn:
        raise SpecError("A judge asks a model: use BatchAgent.run(..., score=judge(...)) or BatchAgent.score.")

    @property
    def task(self) -> str:
        """The prompt template of its agents, beginning with the text that all of them share."""
        low, high = self.scale or (0, 1)
        question = _QUESTION if self.scale is None else _SCALE.format(low=low, high=high)
        rubric = self.rubric.strip().replace("{", "{{").replace("}", "}}")
        return _TASK.format(rubric=rubric, question=question)

    @property
    def schema(self) -> dict[str, Any]:
        """Type of a verdict. The reason comes first, so that the verdict follows from it."""
        verdict: dict[str, Any] = {"type": "boolean"}
        if self.scale is not None:
            low, high = self.scale
            verdict = {"type": "integer", "minimum": low, "maximum": high}
        name = "meets_rubric" if self.scale is None else "score"
        return {
            "type": "object",
            "properties": {"reason": {"type": "string"}, name: verdict},
            "required": ["reason", name],
            "additionalProperties": False,
        }

    def score(self, verdict: Any) -> float:
        """The score in a verdict that fits the schema."""
        return float(verdict["meets_rubric" if self.scale is None else "score"])


def judge(
    rubric: str,
    *,
    name: str = "judge",
    scale: tuple[int, int] | None = None,
    model: str | None = None,
    backend: Any = None,
    **options: Any,
) -> Judge:
    """A scorer that asks a model whether an answer meets the rubric (1 or 0), or for a score on a `scale` such as (1,
    5). The model sees the input and the answer. `model`, `backend`: default to those of the run. `options`: further
    options of its run, such as temperature=0. Equal answers to equal inputs are judged once."""
    return Judge(rubric, name, scale, model, backend, options)


def is_judge(scorer: Any) -> bool:
    return isinstance(scorer, Judge)


def check_no_judge(scorers: Iterable[Any]) -> None:
    """Raises SpecError if there is a judge, which a stream of answers does not support."""
    if any(map(is_judge, scorers)):
        raise SpecError("A judge needs all answers: use BatchAgent.run, or BatchAgent.score after the stream.")
