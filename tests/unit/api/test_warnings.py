"""What is allowed but hardly meant is said before the run."""

from typing import Any

import pytest

from batch_agent import BatchAgent


def search(query: str) -> str:
    """Search."""
    return query


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"task": "Say hello.", "inputs": [{}]}, "names no {field}"),
        ({"task": "Find {x}", "inputs": ["a"], "tools": [search], "max_turns": 1}, "leaves no turn for a tool call"),
    ],
)
def test_an_odd_spec_is_warned_about(options: dict[str, Any], problem: str) -> None:
    with pytest.warns(UserWarning, match=problem):
        BatchAgent.stream(**options)
