"""Eviction order of a host KV tier by the next use of each session.

Pure: no vLLM and no clock. A key names a block, its position is the number of tokens up to its end. Victims, first to
last:

1. blocks of sessions that ended, and of one-shot requests;
2. blocks of sessions that return so soon that the device will still have them: the tier holds only a second copy;
3. blocks of the session whose next use is farthest. A session that is overdue counts as far ahead as it is late, and
   one of unknown next use as far ahead as its last use is back, which among such sessions is LRU;
4. blocks that several live sessions use, the least recently used first.

Within a session the tail goes before the head: a block is of use only together with all blocks before it.

An exclusive tier adds to the device instead of mirroring it: it holds the contexts of sessions that wait, and the
device those of sessions that run. There 2. is the copies of sessions that run, and a new context displaces only that of
a session that returns later; none at all if the device keeps the new one.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

from batch_agent_vllm.device_residency import DeviceResidency
from batch_agent_vllm.hints import Hints

K = TypeVar("K", bound=Hashable)

MAX_SESSIONS = 8_192
"""Maximum number of remembered sessions. Beyond it, the longest unused ones are forgotten, whose clients have
vanished."""

REMEMBERED_REQUESTS = 4_096
"""Number of ended requests that are recognised if their last blocks are stored after their end, as in vLLM 0.26."""

SMOOTHING = 32
"""Requests over which the usual duration of a request is averaged."""


class NextUsePolicy(Generic[K]):
    """Blocks in a host tier and the order in which they leave it. Amortised O(log n) per block and call.

    A request goes through `arrive`, `run` and `finish`; a block through `add`, `unpin`, and `evict` or `remove`. A
    block is pinned from `add` until its store has completed, and while a load reads it.
    """

    def __init__(self, *, is_exclusive: bool = False) -> None:
        self.residency = DeviceResidency()
        self._is_exclusive = is_exclusive
        self._request_s = 0.0
        self.clear()

    def clear(self) -> None:
        """Forgets all blocks and sessions, but not what the policy has learned about the load."""
        self._blocks: dict[K, _Block[K]] = {}
        self._shared: OrderedDict[K, None] = OrderedDict()
        self._sessions: OrderedDict[str, _Session[K]] = OrderedDict()
        self._ended_requests: OrderedDict[str, None] = OrderedDict()
        self._queue: _VictimQueue[K] = _VictimQueue(self.residency)
        self._worthless: _Session[K] = _Session(is_named=False, is_over=True)
        self._evictable = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: K) -> bool:
        return key in self._blocks

    def arrive(self, request: str, hints: Hints, now: float) -> None:
        """Handles a request that waits to be scheduled. What it is about to load is needed next."""
        if request in self._ended_requests:
            return
        session = self._session_of(request, hints, now)
        if request in session.requests:
            return
        if not session.requests and session.ended_at is not None:
            session.pause_s = now - session.ended_at
        session.requests[request] = None
        session.is_over = False
        session.use(None, now)
        self._queue.file(session, now)

    def miss_on_device(self, request: str, hints: Hints, key: K, now: float) -> None:
        """Notes that the device does not have this block of a waiting request. The first such block shows what the
        session lost."""
        self.arrive(request, hints, now)
        session = self._sessions.get(hints.session or request)
        if session is not None:
            self._observe_return(session, was_resident=key not in session.known)

    def run(self, request: str, hints: Hints, now: float) -> None:
        """Handles a request that is now on the device. From now on, the tier's copies are for the session's next
        request."""
        self.arrive(request, hints, now)
        session = self._sessions.get(hints.session or request)
        if session is None or session.requests.get(request, now) is not None:
            return
        session.requests[request] = now
        self._observe_return(session, was_resident=True)
        session.is_over = hints.drop or hints.once
        session.use(hints.next_use_s, now if hints.next_use_s is None else now + self._request_s)
        session.is_on_device = self._is_exclusive
        self._queue.file(session, now)

    def finish(self, request: str, hints: Hints, now: float) -> None:
        """Handles a request that ended, was aborted, or never ran."""
        self._ended_requests[request] = None
        if len(self._ended_requests) > REMEMBERED_REQUESTS:
            self._ended_requests.popitem(last=False)
        session = self._sessions.get(hints.session or request)
        if session is None:
            return
        session.pause_s = None
        started_at = session.requests.pop(request, None)
        if started_at is not None:
            self._request_s += (now - started_at - self._request_s) / SMOOTHING
        session.ended_at = now
        session.is_on_device = self._is_exclusive and bool(session.requests)
        session.use(hints.next_use_s, now)
        if hints.drop or hints.once or hints.session is None:
            self._forget(hints.session or request, is_over=hints.drop or hints.once, now=now)
        else:
            self._queue.file(session, now)

    def keep_on_device(self, session: str, now: float) -> None:
        """Notes that an exclusive tier did not store the context of this waiting session, so that its earlier copy is
        useless."""
        if (known := self._sessions.get(session)) is not None:
            known.is_on_device = True
            self._queue.file(known, now)

    def has_ended(self, request: str) -> bool:
        """Whether the request has recently ended."""
        return request in self._ended_requests

    def touch(self, request: str, hints: Hints, blocks: Iterable[tuple[K, int]], now: float) -> None:
        """Records that the request uses these blocks, in order from head to tail. Remembers those that the tier
        lacks."""
        has_ended = request in self._ended_requests
        if has_ended and (hints.drop or hints.once):
            return
        self.arrive(request, hints, now)
        session = self._session_of(request, hints, now)
        shared: list[K] = []
        for key, position in blocks:
            session.known.add(key)
            block = self._blocks.get(key)
            if block is None:
                continue
            if block.session is not session and (block.session is self._worthless or not hints.once):
                self._give(key, block, session, position, is_shared=position <= hints.shared_tokens)
            if block.session is None:
                shared.append(key)
        for key in reversed(shared):
            self._shared.move_to_end(key)
        if has_ended and hints.session is None:
            self._forget(request, is_over=False, now=now)

    def add(self, key: K) -> None:
        """Adds a new, pinned block. The next `touch` tells whose it is."""
        self._blocks[key] = _Block(self._worthless)

    def remove(self, key: K) -> None:
        block = self._blocks.pop(key)
        self._evictable -= not block.is_pinned
        self._shared.pop(key, None)

    def pin(self, key: K) -> None:
        block = self._blocks[key]
        self._evictable -= not block.is_pinned
        block.is_pinned = True

    def unpin(self, key: K) -> None:
        block = self._blocks[key]
        self._evictable += block.is_pinned
        block.is_pinned = False
        self._offer(key, block)

    def evict(
        self, count: int, protected: Collection[K], now: float, *, spared_until: float | None = None
    ) -> list[K] | None:
        """Removes `count` blocks that are neither pinned nor protected. If there are fewer, changes nothing and returns
        None. `spared_until`: waiting sessions that return before this time keep their blocks."""
        spared = sum(1 for key in protected if key in self._blocks and not self._blocks[key].is_pinned)
        if count > self._evictable - spared:
            return None
        victims: list[K] = []
        passed_over: list[K] = []
        while len(victims) < count and (session := self._queue.first(now)) is not None:
            if spared_until is not None and session.waits_until(now) < spared_until:
                break
            self._take_tail(session, count - len(victims), protected, victims, passed_over)
        if len(victims) < count and spared_until is not None:
            for key in (*victims, *passed_over):
                self._blocks[key].is_offered = False
                self._offer(key, self._blocks[key])
            return None
        if len(victims) < count:
            free = (key for key in self._shared if not self._blocks[key].is_pinned and key not in protected)
            victims += islice(free, count - len(victims))
        for key in victims:
            self.remove(key)
        for key in passed_over:
            self._offer(key, self._blocks[key])
        return victims

    def _take_tail(
        self, session: "_Session[K]", count: int, protected: Collection[K], victims: list[K], passed_over: list[K]
    ) -> None:
        while session.tail and count:
            _, _, key = heappop(session.tail)
            block = self._blocks.get(key)
            if block is None or block.session is not session or not block.is_offered:
                continue
            block.is_offered = False
            if key in protected:
                passed_over.append(key)
            elif not block.is_pinned:
                victims.append(key)
                count -= 1

    def _session_of(self, request: str, hints: Hints, now: float) -> "_Session[K]":
        name = hints.session or request
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(is_named=hints.session is not None)
            session.use(None, now)
            if len(self._sessions) > MAX_SESSIONS:
                oldest = next(iter(self._sessions))
                self._forget(oldest, is_over=False, now=self._sessions[oldest].since)
        self._sessions.move_to_end(name)
        return session

    def _observe_return(self, session: "_Session[K]", was_resident: bool) -> None:
        if session.pause_s is not None and session.known and not self._is_exclusive:
            self.residency.observe(session.pause_s, was_resident)
        session.pause_s = None

    def _forget(self, name: str, is_over: bool, now: float) -> None:
        """Ends the session. Blocks that it alone used become worthless or, if it may still return, are ordered by their
        last use. So are blocks that it was the last to share, because a later session is likely to begin with them."""
        session = self._sessions.pop(name)
        session.is_over = is_over
        session.known = set()
        self._queue.file(session, now)
        rest: _Session[K] = _Session(is_named=False)
        rest.use(None, now)
        for key in session.shared:
            block = self._blocks.get(key)
            if block is not None and block.session is None:
                block.users -= 1
                if not block.users:
                    self._shared.pop(key)
                    block.session = rest
                    self._offer(key, block)

    def _give(self, key: K, block: "_Block[K]", session: "_Session[K]", position: int, is_shared: bool) -> None:
        owner = block.session
        if owner is None:
            if session.is_named and key not in session.shared:
                session.shared.add(key)
                block.users += 1
            return
        block.position = position
        block.is_offered = False
        if session.is_named and (is_shared or block.is_shared or owner.is_named):
            block.session = None
            block.is_shared = True
            self._shared[key] = None
            session.shared.add(key)
            block.users = 1
            if owner.is_named and not owner.is_over and owner is not session:
                owner.shared.add(key)
                block.users = 2
        else:
            block.session = session
            self._offer(key, block)

    def _offer(self, key: K, block: "_Block[K]") -> None:
        if block.session is not None and not block.is_pinned and not block.is_offered:
            block.is_offered = True
            self._queue.offer(block.session, key, block.position)


class _Session(Generic[K]):
    """Blocks that only one session uses, and the time at which it is expected to use them again."""

    __slots__ = (
        "due",
        "ended_at",
        "filing",
        "is_named",
        "is_on_device",
        "is_over",
        "known",
        "next_use_s",
        "pause_s",
        "requests",
        "shared",
        "since",
        "tail",
    )

    def __init__(self, *, is_named: bool, is_over: bool = False) -> None:
        self.is_named = is_named
        self.is_over = is_over
        self.is_on_device = False
        """Whether its request runs. If so, an exclusive tier need not keep its copy."""
        self.requests: dict[str, float | None] = {}
        """Requests that have not ended, each with the time since which it runs."""
        self.tail: list[tuple[int, int, K]] = []
        """Heap of blocks that may be evicted, the last of the chain first. Entries are checked when they are taken."""
        self.known: set[K] = set()
        self.shared: set[K] = set()
        self.next_use_s: float | None = None
        self.since = 0.0
        self.due = 0.0
        self.ended_at: float | None = None
        self.pause_s: float | None = None
        """For a request that has just arrived: how long its session was away."""
        self.filing = 0

    def waits_until(self, now: float) -> float:
        """When it is expected to need the tier: never, if it has ended or runs. If it is overdue, as far ahead as it is
        late."""
        if self.is_over or self.is_on_device:
            return math.inf
        return max(self.due, 2 * now - self.due)

    def use(self, next_use_s: float | None, now: float) -> None:
        self.next_use_s = next_use_s
        self.since = now
        self.due = now + (next_use_s or 0.0)


class _VictimQueue(Generic[K]):
    """Sessions in the order in which they lose blocks. An entry is outdated once its session has been filed anew."""

    def __init__(self, residency: DeviceResidency) -> None:
        self._residency = residency
        self._number = 0
        self._over: list[_Session[K]] = []
        self._on_device: list[tuple[float, int, _Session[K]]] = []
        self._farthest: list[tuple[float, int, _Session[K]]] = []
        self._next_due: list[tuple[float, int, _Session[K]]] = []
        self._past: list[tuple[float, int, _Session[K]]] = []

    def offer(self, session: _Session[K], key: K, position: int) -> None:
        self._number += 1
        heappush(session.tail, (-position, self._number, key))
        if not session.filing:
            self.file(session, session.since)

    def file(self, session: _Session[K], now: float) -> None:
        self._number += 1
        session.filing = self._number if session.tail else 0
        if not session.tail:
            return
        if session.is_over:
            self._over.append(session)
        elif session.is_on_device:
            self._push(self._on_device, -now, session)  # the session that started last ends last
        elif session.next_use_s is not None and now <= session.since + self._residency.seconds > session.due:
            self._push(self._on_device, session.next_use_s, session)
        elif session.due > now:
            self._push(self._farthest, -session.due, session)
            self._push(self._next_due, session.due, session)
        else:
            self._push(self._past, session.due, session)

    def first(self, now: float) -> _Session[K] | None:
        """The session whose tail is evicted next; None if no session has one."""
        while self._over:
            if (over := self._over[-1]).is_over and over.tail:
                return over
            self._over.pop()
            if over.is_over:
                over.filing = 0
        while (soon := _top(self._on_device)) is not None:
            if soon.is_on_device or now <= soon.since + self._residency.seconds:
                return soon
            self.file(soon, now)  # the device has probably evicted it by now
        while (passed := _top(self._next_due)) is not None and passed.due <= now:
            self.file(passed, now)
        far, past = _top(self._farthest), _top(self._past)
        if far is None or past is None:
            return far or past
        return far if far.due - now > now - past.due else past

    def _push(self, heap: list[tuple[float, int, _Session[K]]], key: float, session: _Session[K]) -> None:
        heappush(heap, (key, session.filing, session))
        if len(heap) > 64 and not self._number % len(heap):
            heap[:] = [entry for entry in heap if entry[2].filing == entry[1]]
            heapify(heap)


def _top(heap: list[tuple[float, int, _Session[K]]]) -> _Session[K] | None:
    """The first session in the heap that is still filed there and has blocks to lose."""
    while heap:
        _, filing, session = heap[0]
        if session.filing == filing and session.tail:
            return session
        heappop(heap)
        if session.filing == filing:
            session.filing = 0
    return None


@dataclass(slots=True)
class _Block(Generic[K]):
    session: _Session[K] | None
    """The only session that uses it; None if several do."""
    position: int = 0
    users: int = 0
    """Number of live sessions, if several use it."""
    is_shared: bool = False
    """Whether several have used it."""
    is_pinned: bool = True
    is_offered: bool = False
    """Whether it is in its session's heap."""
