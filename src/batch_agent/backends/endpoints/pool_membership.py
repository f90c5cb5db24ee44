"""Membership of an endpoint pool: which endpoints belong to it, by what its sources list. Pure: nothing here waits."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from ...core.fast_dataclass import dataclass

Name = TypeVar("Name", bound=Hashable)
Source = TypeVar("Source", bound=Hashable)


@dataclass(frozen=True, slots=True)
class MembershipChange(Generic[Name]):
    """What a listing changes. No endpoint is in both."""

    joined: tuple[Name, ...] = ()
    """In the order of the listing."""
    removed: tuple[Name, ...] = ()


class PoolMembership(Generic[Name, Source]):
    """An endpoint belongs to the pool while at least one source lists it. A source may have patience: an endpoint that
    it lists belongs to the pool until so many listings in a row lack it. A listing without any endpoint changes
    nothing: an empty file or answer is a mistake more often than a wish, and a pool cannot be empty."""

    def __init__(self, patience: Mapping[Source, int]) -> None:
        """`patience`: of each source; 1 or more."""
        self._patience = dict(patience)
        self._missed: dict[Source, dict[Name, int]] = {source: {} for source in patience}
        """For each endpoint of a source, the listings since the last one that had it."""

    @property
    def members(self) -> list[Name]:
        """In the order in which they were listed first."""
        return list(dict.fromkeys(name for missed in self._missed.values() for name in missed))

    def on_listing(self, source: Source, names: Iterable[Name]) -> MembershipChange[Name]:
        """A source listed these endpoints."""
        listed = dict.fromkeys(names)
        if not listed:
            return MembershipChange()
        before, missed = self.members, self._missed[source]
        for name in [name for name in missed if name not in listed]:
            missed[name] += 1
            if missed[name] >= self._patience[source]:
                del missed[name]
        missed.update(dict.fromkeys(listed, 0))
        after, known = set(self.members), set(before)
        return MembershipChange(
            tuple(name for name in listed if name not in known), tuple(name for name in before if name not in after)
        )
