"""The cache of tool results: bounded in bytes, least recently used first out, entries that expire."""

from batch_agent.tools.cache import ResultCache, ToolOutcome

ROOM_FOR_TWO = 1100
"""Bytes: an entry takes 512 and two for each character."""


def outcome(content: str = "", order: int = 0, expires: float = float("inf")) -> ToolOutcome:
    return ToolOutcome(content, False, order, 0.0, expires=expires)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_least_recently_used_entry_is_removed_first() -> None:
    cache = ResultCache(ROOM_FOR_TWO, Clock())
    cache.put("a", outcome("a"))
    cache.put("b", outcome("b"))
    assert cache.get("a") is not None
    cache.put("c", outcome("c"))
    assert [key for key in "abc" if cache.get(key)] == ["a", "c"]


def test_an_entry_expires_at_its_time_and_frees_its_bytes() -> None:
    clock = Clock()
    cache = ResultCache(ROOM_FOR_TWO, clock)
    cache.put("a", outcome(expires=5.0))
    cache.put("b", outcome())
    clock.now = 4.9
    assert cache.get("a") is not None
    clock.now = 5.0
    assert cache.get("a") is None
    cache.put("c", outcome())
    assert cache.get("b") is not None


def test_an_outcome_larger_than_the_cache_is_not_stored_and_removes_nothing() -> None:
    cache = ResultCache(ROOM_FOR_TWO, Clock())
    cache.put("a", outcome("a"))
    cache.put("b", outcome("b" * ROOM_FOR_TWO))
    assert cache.get("b") is None
    assert cache.get("a") is not None


def test_an_older_outcome_does_not_replace_a_newer_one() -> None:
    cache = ResultCache(ROOM_FOR_TWO, Clock())
    cache.put("a", outcome("new", order=2))
    cache.put("a", outcome("old", order=1))
    found = cache.get("a")
    assert found is not None
    assert found.content == "new"


def test_replacing_an_entry_frees_the_bytes_of_the_old_one() -> None:
    cache = ResultCache(ROOM_FOR_TWO, Clock())
    for order in range(5):
        cache.put("a", outcome(order=order))
    cache.put("b", outcome())
    assert cache.get("a") is not None
    assert cache.get("b") is not None
