"""Endpoints that failed, or say nothing, are given less time than in earnest."""

import pytest

from batch_agent.schedule import standing
from batch_agent.swarm import lanes


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "_SHORTEST_EJECTION", 0.1)
    monkeypatch.setattr(lanes, "_SOON", 0.3)
