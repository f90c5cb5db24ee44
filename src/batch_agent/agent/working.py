"""The result of an agent whose turns were the work of a program."""

from collections.abc import Sequence
from dataclasses import replace

from ..core.results import AgentResult
from ..core.runtime import Work


def with_work(result: AgentResult, works: Sequence[Work]) -> AgentResult:
    """What the program did, in place of the one question that it was asked."""
    return replace(
        result,
        turns=sum(work.turns for work in works),
        tool_calls=tuple(call for work in works for call in work.calls),
        transcript=works[-1].transcript or result.transcript,
        changes=works[-1].changes,
    )
