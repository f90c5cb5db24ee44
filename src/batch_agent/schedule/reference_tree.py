"""Tree of the references that residents share: each is counted once for all residents whose prompts are the same up to
it. And the tree of what agents ask for, which tells how many will share a reference."""

from collections.abc import Sequence
from dataclasses import field

from ..core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SizedReference:
    """A reference in an agent's prompt, with its size."""

    heading: str
    tokens: float


Path = tuple[SizedReference, ...]
"""References of a prompt, in their order."""


@dataclass(slots=True)
class _Node:
    tokens: float
    residents: int = 0
    children: dict[str, "_Node"] = field(default_factory=dict)


class ReferenceTree:
    """The server's prefix cache keeps a tree: prompts share a reference if everything before it is the same."""

    def __init__(self) -> None:
        self._root = _Node(0.0)
        self.tokens = 0.0
        """Tokens of all references that residents have."""
        self.shared_tokens = 0.0
        """Tokens that would be needed in addition if each resident had its references for itself."""
        self.max_shared_tokens = 0.0

    def missing(self, path: Path, own: int = 0) -> float:
        """Tokens by which the tree would grow with one more resident. `own`: residents with this path that do not
        count."""
        node: _Node | None = self._root
        tokens = 0.0
        for each in path:
            node = None if node is None else node.children.get(each.heading)
            if node is None or node.residents <= own:
                tokens += each.tokens
        return tokens

    def add(self, path: Path) -> float:
        """Adds a resident; returns the tokens by which the tree grew."""
        node, before = self._root, self.tokens
        for each in path:
            child = node.children.get(each.heading)
            if child is None:
                child = node.children[each.heading] = _Node(each.tokens)
                self.tokens += child.tokens
            else:
                self.shared_tokens += child.tokens
            child.residents += 1
            node = child
        self.max_shared_tokens = max(self.max_shared_tokens, self.shared_tokens)
        return self.tokens - before

    def remove(self, path: Path) -> None:
        """Removes a resident that was added with the same references."""
        node = self._root
        for each in path:
            child = node.children[each.heading]
            child.residents -= 1
            if child.residents:
                self.shared_tokens -= child.tokens
            else:
                self.tokens -= child.tokens
                del node.children[each.heading]
            node = child


def tokens_of(path: Sequence[SizedReference]) -> float:
    return sum(each.tokens for each in path) if path else 0.0


_MAX_NODES = 100_000
_MAX_DEPTH = 32
"""References of an agent that are counted as a path."""


@dataclass(slots=True)
class _ReadNode:
    agents: int = 0
    children: dict[str, "_ReadNode"] = field(default_factory=dict)


@dataclass(slots=True)
class _Level:
    """Nodes of one depth."""

    nodes: int = 0
    agents: int = 0


class ReadPaths:
    """Tree of what agents asked for, in the order of a prompt, with the number of agents that came to each node: as
    many could share what the server computed up to there."""

    def __init__(self) -> None:
        self._root = _ReadNode()
        self._levels: list[_Level] = []
        self._nodes = 0

    def extend(self, before: Sequence[str], after: Sequence[str]) -> None:
        """An agent asked for more."""
        node, is_new = self._root, False
        for depth, heading in enumerate(after[:_MAX_DEPTH]):
            is_new = is_new or before[depth : depth + 1] != [heading]
            if depth == len(self._levels):
                self._levels.append(_Level())
            if (child := node.children.get(heading)) is None:
                if self._nodes >= _MAX_NODES:
                    return
                child = node.children[heading] = _ReadNode()
                self._nodes += 1
                self._levels[depth].nodes += 1
            child.agents += is_new
            self._levels[depth].agents += is_new
            node = child

    def agents(self, path: Sequence[str]) -> float:
        """Agents that came to a node, or to nodes of its depth on average, if that is more: others may follow."""
        if not 0 < len(path) <= len(self._levels):
            return 1.0
        node: _ReadNode | None = self._root
        for heading in path:
            node = None if node is None else node.children.get(heading)
        level = self._levels[len(path) - 1]
        return max(1 if node is None else node.agents, level.agents / level.nodes)
