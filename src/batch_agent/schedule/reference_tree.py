"""Tree of the references that residents share: each is counted once for all residents whose prompts are the same up to
it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.fast_dataclass import dataclass as frozen


@frozen(frozen=True, slots=True)
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

    def missing(self, path: Path) -> float:
        """Tokens by which the tree would grow with one more resident."""
        node: _Node | None = self._root
        tokens = 0.0
        for each in path:
            node = None if node is None else node.children.get(each.heading)
            if node is None:
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
