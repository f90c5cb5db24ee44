"""Counts of the agents in progress, by state."""

from typing import Literal

AgentState = Literal["waiting", "generating", "in tools"]


class AgentStates:
    """States of the agents in progress of one run. Chunks of a long input count as their agent, whose key and a dot
    begin their keys. The agent is generating if any of its chunks is."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentState] = {}
        self._chunks: dict[str, dict[str, AgentState]] = {}
        """The states of each agent's chunks, without waiting ones."""
        self._counts: dict[AgentState, int] = {"waiting": 0, "generating": 0, "in tools": 0}

    @property
    def waiting(self) -> int:
        """Agents that wait for a slot, for residency or for a retry."""
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

    def add(self, key: str) -> None:
        if key not in self._agents:
            self._agents[key] = "waiting"
            self._counts["waiting"] += 1

    def set(self, key: str, state: AgentState) -> None:
        before = self._agents.get(key)
        if before is None:
            self._set_chunk(key, state)
        elif before is not state:
            self._agents[key] = state
            self._counts[before] -= 1
            self._counts[state] += 1

    def remove(self, key: str) -> None:
        state = self._agents.pop(key, None)
        if state is not None:
            self._counts[state] -= 1
            self._chunks.pop(key, None)

    def _set_chunk(self, key: str, state: AgentState) -> None:
        agent, _, chunk = key.partition(".")
        if agent not in self._agents:
            return  # the agent was removed
        chunks = self._chunks.setdefault(agent, {})
        if state == "waiting":
            chunks.pop(chunk, None)
        else:
            chunks[chunk] = state
        self.set(agent, "waiting" if not chunks else "generating" if "generating" in chunks.values() else "in tools")
