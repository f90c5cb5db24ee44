"""Endpoints that failed, or say nothing, are given less time than in earnest."""

import pytest

from batch_agent.pools import stragglers
from batch_agent.schedule.endpoints import circuit_breaker as standing
from batch_agent.schedule.retry import Backoff


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "_EJECTION", Backoff(0.1, 60.0))
    monkeypatch.setattr(stragglers, "_MIN_SILENT_SECONDS", 0.3)
