"""Small files of a distributed run for its readers: scores, and comparisons with other runs. Each is a document at the
coordinator."""

from collections.abc import Callable

from ..core.coordinator import Document, Documents
from ..observe.score_file import COMPARISONS, SCORES, merge_scores
from ..scores.score_book import AnswerScores
from .document_change import change

RUN_FILES = (SCORES, COMPARISONS)
"""Names of the files, in a checkpoint directory and at the coordinator."""


async def save_file(documents: Documents, name: str, data: bytes) -> None:
    """Replaces a file of the run. Raises StoreError."""
    await _change(documents, name, lambda _: data)


async def add_scores(documents: Documents, scores: AnswerScores) -> None:
    """Adds scores like `save_scores`, for a run at a coordinator. Raises StoreError."""
    await _change(documents, SCORES, lambda known: merge_scores(known, scores))


async def _change(documents: Documents, name: str, edit: Callable[[bytes | None], bytes]) -> None:
    async def edited(document: Document) -> bytes:
        return edit(document.data)

    await change(documents, name, edited)
