"""Small files of a distributed run, which its readers use: its scores, and its comparisons with other runs. Each is a
document at the coordinator."""

from collections.abc import Callable

from ..core.coordinator import Document
from ..observe.score_file import COMPARISONS, SCORES, merge_scores
from ..scores.score_book import AnswerScores
from .shared_limits import Documents, change

RUN_FILES = (SCORES, COMPARISONS)
"""Names of the files, in a checkpoint directory and at the coordinator."""


async def save_file(coordinator: Documents, name: str, data: bytes) -> None:
    """Replaces a file of the run. Raises StoreError."""
    await _change(coordinator, name, lambda _: data)


async def add_scores(coordinator: Documents, scores: AnswerScores) -> None:
    """As `save_scores`, for a run at a coordinator. Raises StoreError."""
    await _change(coordinator, SCORES, lambda known: merge_scores(known, scores))


async def _change(coordinator: Documents, name: str, edit: Callable[[bytes | None], bytes]) -> None:
    async def edited(document: Document) -> bytes:
        return edit(document.data)

    await change(coordinator, name, edited)
