"""Tool set of a run without tools."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.agent_config import Job
from ..core.facts import Fact
from ..core.messages import ToolSpec
from ..core.protocols.tool_set import Journal
from ..lazy_imports import lazy_modules

with lazy_modules(globals()):
    from . import executor

if TYPE_CHECKING:
    from .agent_tools import AgentToolSession
    from .executor import ToolExecutor

_NOTICE_TOKENS = 1_000
"""Enough for the result that says that a tool is unknown."""


class NoTools:
    """Tool set of a run without tools. A model that calls one nevertheless gets a result that says so."""

    specs: tuple[ToolSpec, ...] = ()
    may_start_early = False

    _executor: "ToolExecutor | None" = None

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> "AgentToolSession":
        if self._executor is None:
            self._executor = executor.ToolExecutor((), timeout=None, max_tokens=_NOTICE_TOKENS)
        return self._executor.session(agent, journal)

    def recall(self, facts: Sequence[Fact]) -> None:
        """There are no results to place."""

    async def aclose(self) -> None:
        """There is nothing to close."""
