"""Pins of device blocks: keep the contexts of waiting sessions in GPU memory, and make those of ended sessions leave
first.

A pin is a reference to the blocks of a session's last request, which keeps vLLM from evicting them. It is released when
the session returns, ends, or is overdue, and given up when a request needs the memory. Blocks whose pin is released or
given up are not evicted at once, but are again subject to vLLM's own LRU order."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from batch_agent_vllm.hints import Hints

_OVERDUE = 2.0
"""A pin is released when the session has been away this many times as long as expected."""
_MIN_PIN_SECONDS = 1.0


class Block(Protocol):
    """vLLM's KVCacheBlock."""

    block_id: int
    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> Any: ...


class BlockPool(Protocol):
    """The part of vLLM's BlockPool that is used here."""

    num_gpu_blocks: int
    free_block_queue: Any

    @property
    def blocks(self) -> Sequence[Any]: ...

    def touch(self, blocks: Sequence[Any]) -> None: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...

    def get_num_free_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PinLimits:
    max_fraction: float = 0.5
    """Maximum share of the device blocks that may be pinned."""
    max_wait: float = 60.0
    """Sessions that are away for longer than this are not pinned, because their blocks are more useful to others."""
    unknown_wait: float = 15.0
    """Assumed wait of sessions whose next use is unknown."""


@dataclass(slots=True)
class PinCounts:
    """Counts since the start of the engine."""

    taken: int = 0
    returned: int = 0
    """Sessions that returned while they were pinned."""
    given_up: int = 0
    """Pins that were released because the memory was needed by a request, or by a session with an earlier next use."""
    expired: int = 0
    stored: int = 0
    """Pins that ended because an exclusive host tier has the context."""
    dropped_blocks: int = 0
    """Blocks of ended sessions that were made the next ones to be reused."""


class _CachedBlock(NamedTuple):
    """A block with the hash of its content at the time when a request left it. A different hash later means that it was
    evicted."""

    block: Block
    content: Any
    is_shared: bool
    """Whether it is in the part of the prompt that other sessions also have."""

    @property
    def is_present(self) -> bool:
        return bool(self.block.block_hash == self.content)


@dataclass(slots=True)
class _Session:
    """Context of a session, as its last request left it."""

    blocks: tuple["_CachedBlock", ...]
    next_use: float = 0.0
    expires: float | None = None
    """Expiry time of its pin; None without a pin."""
    is_back: bool = False
    """Whether its next request waits to be scheduled. Its pin does not expire then."""
    is_stored: bool = False
    """Whether an exclusive host tier has it, so that it needs no pin."""


class DevicePins:
    """Pins of a block pool. Methods are called by vLLM's scheduler, with the current time."""

    def __init__(self, pool: BlockPool, block_size: int, limits: PinLimits | None = None) -> None:
        self.counts = PinCounts()
        self._pool = pool
        self._block_size = block_size
        self._limits = limits or PinLimits()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """All sessions whose context may be on the device, the least recently finished first."""
        self._pinned: dict[str, list[Block]] = {}
        self._held: Counter[int] = Counter()
        """Number of pins of each block."""
        self._users: Counter[Any] = Counter()
        """Number of sessions with each block content."""
        self._remembered = 0
        self._first_expiry = float("inf")
        self._dropped: dict[int, _CachedBlock] = {}
        """Blocks of ended sessions that are still held by the ending request, by id."""

    @property
    def pinned_blocks(self) -> int:
        return len(self._held)

    def on_request(self, name: str) -> None:
        """Handles the arrival of a request. Until it is scheduled, its session's pin does not expire, and is given up
        only after those of others."""
        if (session := self._sessions.get(name)) is not None:
            session.is_back = True
            session.next_use = 0.0

    def on_scheduled(self, name: str) -> None:
        """Handles the scheduling of a request, which now has its own references."""
        session = self._sessions.get(name)
        if session is not None and session.is_back:
            session.is_back = False
            if self._unpin(name, session):
                self.counts.returned += 1

    def on_finished(self, hints: Hints, groups: Sequence[Sequence[int]], now: float) -> None:
        """Handles the end of a request. `groups`: ids of its blocks in the order of the prompt, for each KV cache
        group."""
        blocks = self._cached(groups, -(-hints.shared_tokens // self._block_size))
        if hints.once or hints.drop:
            if hints.session is not None:
                self._forget(hints.session)
            self._drop(blocks, references=1)
            return
        if hints.session is None:
            return
        if blocks:
            self._forget(hints.session)
            self._remember(hints.session, _Session(blocks))
        elif (session := self._sessions.get(hints.session)) is not None:
            session.is_back = False  # aborted before it was scheduled: the context is that of the previous request
        self.on_hints(hints, now)

    def on_hints(self, hints: Hints, now: float) -> None:
        """Updates what the client expects of a session that is away."""
        name = hints.session or ""
        session = self._sessions.get(name)
        if session is None or session.is_back:
            return
        if hints.drop:
            self._forget(name)
            self._drop(session.blocks, references=0)
            return
        wait = self._limits.unknown_wait if hints.next_use_s is None else hints.next_use_s
        session.next_use = now + wait
        if session.is_stored:
            return
        if wait > self._limits.max_wait:
            self._unpin(name, session)
            return
        self._pin(name, session, now + max(_MIN_PIN_SECONDS, _OVERDUE * wait))

    def on_stored(self, name: str) -> None:
        """Notes that an exclusive host tier has the context of the session, so that the device may evict it."""
        session = self._sessions.get(name)
        if session is not None and not session.is_back:
            session.is_stored = True
            if self._unpin(name, session):
                self.counts.stored += 1

    def pinned_of(self, name: str) -> int:
        """Number of blocks that are pinned for the session."""
        return len(self._pinned.get(name, ()))

    def make_room(self, blocks: int, now: float) -> None:
        """Prepares the allocation of `blocks`: ends overdue pins, and gives up pins while too few blocks are free."""
        self._move_dropped()
        if now >= self._first_expiry:
            self._expire(now)
        while self._pinned and self._pool.get_num_free_blocks() < blocks:
            self._give_up()

    def clear(self) -> None:
        """Releases all pins."""
        for name in list(self._sessions):
            self._forget(name)
        self._dropped.clear()

    def _cached(self, groups: Sequence[Sequence[int]], shared: int) -> tuple[_CachedBlock, ...]:
        cached: list[_CachedBlock] = []
        for block_ids in groups:
            for index, block_id in enumerate(block_ids):
                block = self._pool.blocks[block_id]
                if not block.is_null and block.block_hash is not None:
                    cached.append(_CachedBlock(block, block.block_hash, index < shared))
        return tuple(cached)

    def _pin(self, name: str, session: _Session, expires: float) -> None:
        if name not in self._pinned:
            present = [each.block for each in session.blocks if each.is_present]
            if not present:
                return
            self._pool.touch(present)
            self._pinned[name] = present
            self._held.update(block.block_id for block in present)
            self.counts.taken += 1
        session.expires = expires
        self._first_expiry = min(self._first_expiry, expires)
        while self._pinned and len(self._held) > self._limits.max_fraction * self._pool.num_gpu_blocks:
            self._give_up()

    def _unpin(self, name: str, session: _Session) -> bool:
        blocks = self._pinned.pop(name, None)
        session.expires = None
        if blocks is None:
            return False
        for block in blocks:
            self._held[block.block_id] -= 1
            if not self._held[block.block_id]:
                del self._held[block.block_id]
        self._pool.free_blocks(reversed(blocks))  # the end of a context is evicted first
        return True

    def _give_up(self) -> None:
        """Gives up the pin of the session that is needed last."""
        name = max(self._pinned, key=lambda each: self._sessions[each].next_use)
        self._unpin(name, self._sessions[name])
        self.counts.given_up += 1

    def _expire(self, now: float) -> None:
        for name in list(self._pinned):
            session = self._sessions[name]
            if session.expires is not None and session.expires <= now and not session.is_back:
                self._unpin(name, session)
                self.counts.expired += 1
        ends = [self._sessions[name].expires for name in self._pinned if not self._sessions[name].is_back]
        self._first_expiry = min((end for end in ends if end is not None), default=float("inf"))

    def _remember(self, name: str, session: _Session) -> None:
        self._sessions[name] = session
        self._users.update(each.content for each in session.blocks)
        self._remembered += len(session.blocks)
        while self._remembered > 2 * self._pool.num_gpu_blocks:  # the blocks of the others were evicted long ago
            oldest = next(iter(self._sessions))
            if oldest == name:
                break
            self._forget(oldest)

    def _forget(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._unpin(name, session)
        self._remembered -= len(session.blocks)
        for each in session.blocks:
            self._users[each.content] -= 1
            if not self._users[each.content]:
                del self._users[each.content]

    def _drop(self, blocks: Sequence[_CachedBlock], references: int) -> None:
        """Drops blocks of an ended session. `references`: number of references held by the ending request. Keeps blocks
        that another request or session uses."""
        for each in blocks:
            if not each.is_shared and each.content not in self._users and each.block.ref_cnt <= references:
                self._dropped[each.block.block_id] = each
        self._move_dropped()

    def _move_dropped(self) -> None:
        """Makes blocks of ended sessions the next ones to be reused, the end of a context first. Until then, another
        request may still find them."""
        if not self._dropped:
            return
        held: dict[int, _CachedBlock] = {}
        free: list[Block] = []
        for block_id, each in self._dropped.items():
            if each.is_present and each.content not in self._users:
                if each.block.ref_cnt == 0:
                    free.append(each.block)
                elif each.block.ref_cnt == 1:
                    held[block_id] = each
        self._dropped = held
        for block in free:
            self._pool.free_block_queue.remove(block)
        self._pool.free_block_queue.prepend_n(free[::-1])
        self.counts.dropped_blocks += len(free)
