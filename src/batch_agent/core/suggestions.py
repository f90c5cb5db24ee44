"""What is said of a name that is not known: its name of today if batch-agent 0.2 had it, else the nearest names."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

_ALIKE = 0.75
"""Least similarity of two spellings. Below it are names that share a part only, such as reduce and reorder."""
_SHORT, _ALIKE_IF_SHORT = 4, 0.66
"""Letters, and the likeness of words of so many: one letter of three may be another."""
_MOST = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Names spelt like this one, or made of its words and more (turns: max_turns); the best first, at most three."""
    wanted = _plain(name)
    scored = [(_likeness(wanted, _plain(other)), other) for other in dict.fromkeys(known)]
    least = _ALIKE_IF_SHORT if len(wanted) <= _SHORT else _ALIKE
    found = sorted((pair for pair in scored if pair[0] >= least), key=lambda pair: (-pair[0], pair[1]))
    if found and found[0][0] == 1:  # the same but for its case or its dashes
        found = found[:1]
    return [other for _, other in found[:_MOST]]


def meant(name: str, known: Iterable[str], write: str = "{!r}") -> str:
    """A question to put behind an error, or nothing. `write`: how a name is shown."""
    close = nearest(name, known)
    return f" Did you mean {' or '.join(write.format(other) for other in close)}?" if close else ""


def explained(kinds: str | Sequence[str], name: str, known: Iterable[str], write: str = "{!r}") -> str:
    """What to write in the place of an unknown name. `kinds`: tables of `former_names`, the first counts most."""
    from .former_names import FORMER  # read when something is wrong, and not before

    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if (former := FORMER[kind].get(_plain(name))) is not None:
            return f" batch-agent 0.2 had this name; now {former}."
    return meant(name, known, write)


def _likeness(one: str, other: str) -> float:
    if set(one.split("_")) <= set(other.split("_")):
        return max(_ALIKE, SequenceMatcher(None, one, other).ratio())
    return SequenceMatcher(None, one, other).ratio()


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()
