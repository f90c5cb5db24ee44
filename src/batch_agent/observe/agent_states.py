"""Agents that are neither to come nor done, by what they do."""

from typing import Literal

Doing = Literal["waiting", "generating", "in tools"]


class AgentStates:
    """Agents of one run. Parts of a long input belong to its agent (their keys begin with its own and a dot), which
    generates if any of them does. Holds the agents that are under way, and nothing of those that were."""

    def __init__(self) -> None:
        self._agents: dict[str, Doing] = {}
        self._parts: dict[str, dict[str, Doing]] = {}
        """By agent, what those of its parts do that do not wait."""
        self._counts: dict[Doing, int] = {"waiting": 0, "generating": 0, "in tools": 0}

    @property
    def waiting(self) -> int:
        """For a slot, a place in the cache, or another try."""
        return self._counts["waiting"]

    @property
    def generating(self) -> int:
        return self._counts["generating"]

    @property
    def in_tools(self) -> int:
        return self._counts["in tools"]

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, key: str) -> bool:
        return key in self._agents

    def starts(self, key: str) -> None:
        if key not in self._agents:
            self._agents[key] = "waiting"
            self._counts["waiting"] += 1

    def does(self, key: str, doing: Doing) -> None:
        before = self._agents.get(key)
        if before is None:
            self._part_does(key, doing)
        elif before is not doing:
            self._agents[key] = doing
            self._counts[before] -= 1
            self._counts[doing] += 1

    def leaves(self, key: str) -> None:
        doing = self._agents.pop(key, None)
        if doing is not None:
            self._counts[doing] -= 1
            self._parts.pop(key, None)

    def _part_does(self, key: str, doing: Doing) -> None:
        agent, _, part = key.partition(".")
        if agent not in self._agents:
            return  # it has left
        parts = self._parts.setdefault(agent, {})
        if doing == "waiting":
            parts.pop(part, None)
        else:
            parts[part] = doing
        self.does(agent, "waiting" if not parts else "generating" if "generating" in parts.values() else "in tools")
