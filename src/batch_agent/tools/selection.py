"""Some of the tools of a fabric that others use too."""

from collections.abc import Sequence

from ..core.interfaces import Journal
from ..core.prompt import ToolSpec
from .fabric import ToolFabric
from .session import FabricSession
from .tool import Tool


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
