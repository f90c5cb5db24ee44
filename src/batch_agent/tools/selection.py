"""Toolboxes over a tool executor: some of the tools that several runs share, or none."""

from collections.abc import Sequence

from ..core.interfaces import Journal
from ..core.prompt import ToolSpec
from .fabric import ToolFabric
from .session import FabricSession
from .tool import Tool

_NOTICE = 1_000
"""Tokens of the longest result: that a tool is not known."""


class Selection:
    """A toolbox of its own for agents that know only these: what one of them was told is shared with all."""

    def __init__(self, fabric: ToolFabric, tools: Sequence[Tool]) -> None:
        self._fabric = fabric
        self._names = tuple(tool.name for tool in tools)
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)
        self.may_start_early = any(tool.sharing.is_shared for tool in tools)

    def session(self, agent: str, journal: Journal | None = None) -> FabricSession:
        return FabricSession(self._fabric, agent, journal, self._names)

    async def aclose(self) -> None:
        """The fabric stays open: it is not ours."""


class NoTools:
    """Toolbox of a run without tools. A model that calls one nevertheless reads that there is none."""

    specs: tuple[ToolSpec, ...] = ()
    may_start_early = False

    def __init__(self) -> None:
        self._fabric: ToolFabric | None = None

    def session(self, agent: str, journal: Journal | None = None) -> FabricSession:
        if self._fabric is None:
            self._fabric = ToolFabric((), timeout=None, max_tokens=_NOTICE)
        return self._fabric.session(agent, journal)

    async def aclose(self) -> None:
        """There is nothing to close."""
