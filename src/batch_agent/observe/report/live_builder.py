"""Builder of the report in the process that writes the event log."""

import time
from pathlib import Path
from typing import Any

from ...core.events import Event
from ..event_codec import rounded
from .page_model import model_of, with_evaluation
from .run_view import RunView


class LiveReportBuilder:
    """Builds the model of the report from events, without reading the log again, which would take as long as writing
    it. Only for a log that one process has written, with times that do not decrease."""

    def __init__(self, folder: Path, began: float) -> None:
        self._folder = folder
        self._began = rounded(began)
        self._view = RunView()

    def take(self, at: float, event: Event) -> None:
        """`at`: as in the log, rounded."""
        self._view.take(at - self._began, event)

    def model(self) -> dict[str, Any]:
        """The model at the end of the process."""
        found = model_of(
            self._view, title=self._folder.name, began=self._began, now=time.time(), is_running=False, is_closed=True
        )
        return with_evaluation(found, self._view, self._folder)
