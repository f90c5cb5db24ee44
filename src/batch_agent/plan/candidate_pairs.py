"""Candidate pairs: texts that share enough tokens to be worth a comparison.

An exact join by the Jaccard similarity of token sets. A pair can reach the similarity only if the rarest tokens of both
texts overlap, so only texts that share one of those few tokens are compared (prefix filtering)."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain

_WORD = re.compile(r"\w+")
_GRAM = 3


class TooManyPairs(ValueError):
    """Raised if there are more pairs than the caller permits."""


Pair = tuple[int, int]
"""Indices of two texts, the smaller one first."""


def tokens_of(text: str) -> frozenset[str]:
    """Words and their sequences of three characters, so that slightly different spellings share tokens."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        padded = f" {word} "
        found.update(padded[at : at + _GRAM] for at in range(max(1, len(padded) - _GRAM + 1)))
    return frozenset(found)


def similar_pairs(texts: Sequence[str], similarity: float, most: int, split: int | None = None) -> list[Pair]:
    """All pairs of texts whose token sets have at least this Jaccard similarity. `split`: limits pairs to one text
    before this index and one from it on. Raises TooManyPairs."""
    sets = [tokens_of(text) for text in texts]
    counts = Counter(chain.from_iterable(sets))
    rank = {token: number for number, token in enumerate(sorted(counts, key=lambda token: (counts[token], token)))}
    holders: dict[str, list[int]] = {}
    found: list[Pair] = []
    for index, tokens in enumerate(sets):
        rare = sorted(tokens, key=rank.__getitem__)[: _prefix(len(tokens), similarity)]
        if split is None or index >= split:
            near = {other for token in rare for other in holders.get(token, ())}
            found += [(other, index) for other in near if _jaccard(sets[other], tokens) >= similarity]
            if len(found) > most:
                raise TooManyPairs
        if split is None or index < split:
            for token in rare:
                holders.setdefault(token, []).append(index)
    return sorted(found)


def pairs_by_key(keys: Sequence[Iterable[Hashable]], most: int, split: int | None = None) -> list[Pair]:
    """All pairs that share a key. `split`: as for `similar_pairs`. Raises TooManyPairs."""
    members: dict[Hashable, list[int]] = {}
    found: set[Pair] = set()
    for index, own in enumerate(keys):
        for key in set(own):
            if split is None or index >= split:
                found.update((other, index) for other in members.get(key, ()))
                if len(found) > most:
                    raise TooManyPairs
            if split is None or index < split:
                members.setdefault(key, []).append(index)
    return sorted(found)


def clusters(count: int, pairs: Iterable[Pair]) -> list[list[int]]:
    """The groups of `count` items that pairs connect, directly or through others, in order of their first item."""
    parent = list(range(count))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for one, two in pairs:
        first, second = sorted((root(one), root(two)))
        parent[second] = first
    groups: dict[int, list[int]] = {}
    for item in range(count):
        groups.setdefault(root(item), []).append(item)
    return list(groups.values())


def _prefix(size: int, similarity: float) -> int:
    """Number of a set's rarest tokens that decide whether it can be similar to another set."""
    return size - math.ceil(similarity * size - 1e-9) + 1 if size else 0


def _jaccard(one: frozenset[str], two: frozenset[str]) -> float:
    shared = len(one & two)
    return shared / (len(one) + len(two) - shared) if shared else 0.0
