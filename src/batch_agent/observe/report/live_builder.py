"""The view of a run as it happens, for who writes its log."""

import time
from typing import Any

from ...core.events import Event
from ..event_codec import rounded
from .model import model_of
from .run_view import RunView


class LiveReportBuilder:
    """What is read from a log, made from its events instead: to read it again would take as long as to write it. Only
    for a log that one process has written, with times that never go back."""

    def __init__(self, title: str, began: float) -> None:
        self._title = title
        self._began = rounded(began)
        self._view = RunView()

    def take(self, at: float, event: Event) -> None:
        self._view.take(rounded(at) - self._began, event)

    def model(self) -> dict[str, Any]:
        """Once the process is at its end."""
        return model_of(
            self._view, title=self._title, began=self._began, now=time.time(), is_running=False, is_closed=True
        )
