"""Stores that do not outlive the process."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.facts import Fact


class NoStore:
    """Keeps nothing: a run without a checkpoint, however long, does not fill the memory."""

    async def open(self) -> None:
        pass

    async def plan(self) -> Mapping[str, Any] | None:
        return None

    def keep_plan(self, plan: Mapping[str, Any]) -> None:
        pass

    async def facts(self, key: str) -> Sequence[Fact]:
        return ()

    def record(self, key: str, fact: Fact) -> None:
        pass

    def forget(self, key: str) -> None:
        pass

    async def settle(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


class MemoryStore:
    """Keeps facts as long as it lives: for tests, and for runs that are continued in the same process."""

    def __init__(self) -> None:
        self._facts: dict[str, list[Fact]] = {}
        self._plan: Mapping[str, Any] | None = None

    async def open(self) -> None:
        pass

    async def plan(self) -> Mapping[str, Any] | None:
        return self._plan

    def keep_plan(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan

    async def facts(self, key: str) -> Sequence[Fact]:
        return tuple(self._facts.get(key, ()))

    def record(self, key: str, fact: Fact) -> None:
        self._facts.setdefault(key, []).append(fact)

    def forget(self, key: str) -> None:
        self._facts.pop(key, None)

    async def settle(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
