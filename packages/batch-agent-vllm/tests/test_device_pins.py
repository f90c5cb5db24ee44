"""Pins of device blocks: bounded, given up under pressure, and never leaking a reference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent_vllm.device_pins import DevicePins, PinLimits
from batch_agent_vllm.hints import Hints

BLOCK = 16


@dataclass(slots=True, eq=False)
class Block:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: str | None = None


class FreeQueue(list[Block]):
    """The first is reused first. As in vLLM, a block that is not in it cannot be removed."""

    def prepend_n(self, blocks: list[Block]) -> None:
        self[:0] = blocks


class Pool:
    """vLLM's BlockPool, as far as the pins use it, with requests that allocate from it."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [Block(each) for each in range(blocks)]
        self.free_block_queue = FreeQueue(self.blocks)

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)

    def get_num_free_blocks(self) -> int:
        return len(self.free_block_queue)

    def run(self, contents: Sequence[str]) -> list[Block]:
        """The blocks of a request with these contents: cached ones are hits."""
        cached = {block.block_hash: block for block in self.blocks if block.block_hash is not None}
        hits = [cached[each] for each in contents if each in cached]
        self.touch(hits)
        used = {block.block_hash: block for block in hits}
        for content in contents:
            if content not in used:
                block = self.free_block_queue.pop(0)
                block.ref_cnt, block.block_hash = 1, content
                used[content] = block
        return [used[each] for each in contents]

    def cached(self, contents: Sequence[str]) -> int:
        hashes = {block.block_hash for block in self.blocks}
        return sum(each in hashes for each in contents)


def context(session: str, blocks: int, shared: int = 0) -> list[str]:
    return [f"shared-{each}" if each < shared else f"{session}-{each}" for each in range(blocks)]


class Engine:
    """A pool and its pins, with whole requests."""

    def __init__(self, blocks: int = 20, limits: PinLimits | None = None) -> None:
        self.pool = Pool(blocks)
        self.pins = DevicePins(self.pool, BLOCK, limits)

    def request(self, hints: Hints, contents: Sequence[str], now: float = 0.0) -> None:
        if hints.session:
            self.pins.on_request(hints.session)
        own = self.pins.pinned_of(hints.session or "")
        self.pins.make_room(len(contents) - own, now)
        blocks = self.pool.run(contents)
        if hints.session:
            self.pins.on_scheduled(hints.session)
        self.pins.on_finished(hints, [[block.block_id for block in blocks]], now)
        self.pool.free_blocks(reversed(blocks))
        self.pins.make_room(0, now)


def test_a_waiting_session_outlives_traffic_that_would_evict_it() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=5.0), context("a", 5))
    for each in range(8):
        engine.request(Hints(), context(f"other-{each}", 5))
    assert engine.pool.cached(context("a", 5)) == 5


def test_a_session_that_returns_releases_its_pin() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=5.0), context("a", 5))
    engine.request(Hints("a", drop=True), context("a", 6), now=1.0)
    assert engine.pins.pinned_blocks == 0
    assert engine.pins.counts.returned == 1


def test_an_overdue_session_is_released() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=5.0), context("a", 5))
    engine.pins.make_room(0, now=9.0)
    assert engine.pins.pinned_blocks == 5
    engine.pins.make_room(0, now=10.0)
    assert engine.pins.pinned_blocks == 0
    assert engine.pins.counts.expired == 1


def test_a_session_whose_request_waits_in_the_queue_does_not_expire() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=5.0), context("a", 5))
    engine.pins.on_request("a")
    engine.pins.make_room(0, now=100.0)
    assert engine.pins.pinned_blocks == 5


def test_a_long_wait_is_not_pinned() -> None:
    engine = Engine(limits=PinLimits(max_wait=60.0))
    engine.request(Hints("a", next_use_s=61.0), context("a", 5))
    assert engine.pins.pinned_blocks == 0


def test_under_pressure_the_session_that_is_needed_last_is_given_up() -> None:
    engine = Engine()
    engine.request(Hints("soon", next_use_s=2.0), context("soon", 5))
    engine.request(Hints("late", next_use_s=30.0), context("late", 5))
    engine.request(Hints(), context("large", 15))
    assert engine.pool.cached(context("soon", 5)) == 5
    assert engine.pool.cached(context("late", 5)) == 0
    assert engine.pins.counts.given_up == 1


def test_the_share_of_pinned_blocks_is_bounded() -> None:
    engine = Engine(limits=PinLimits(max_fraction=0.5))
    for each in range(4):
        engine.request(Hints(f"s{each}", next_use_s=float(each + 1)), context(f"s{each}", 5))
    assert engine.pins.pinned_blocks == 10
    assert engine.pins.pinned_of("s0") == 5
    assert engine.pins.pinned_of("s1") == 5


def test_a_shared_prefix_counts_once() -> None:
    engine = Engine(limits=PinLimits(max_fraction=0.5))
    for each in range(4):
        engine.request(Hints(f"s{each}", next_use_s=5.0), context(f"s{each}", 5, shared=4))
    assert engine.pins.pinned_blocks == 8


def test_a_correction_extends_ends_or_takes_a_pin() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=100.0), context("a", 5))
    assert engine.pins.pinned_blocks == 0
    engine.pins.on_hints(Hints("a", next_use_s=3.0), now=1.0)
    assert engine.pins.pinned_blocks == 5
    engine.pins.on_hints(Hints("a", next_use_s=50.0), now=2.0)
    engine.pins.make_room(0, now=60.0)
    assert engine.pins.pinned_blocks == 5
    engine.pins.on_hints(Hints("a", next_use_s=100.0), now=61.0)
    assert engine.pins.pinned_blocks == 0


def test_a_correction_of_a_context_that_was_evicted_pins_nothing() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=100.0), context("a", 5))
    for each in range(4):
        engine.request(Hints(), context(f"other-{each}", 5))
    engine.pins.on_hints(Hints("a", next_use_s=1.0), now=0.0)
    assert engine.pins.pinned_blocks == 0


def test_the_blocks_of_an_ended_session_are_reused_first() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=100.0), context("a", 5))  # not pinned: the least recently used
    engine.request(Hints("b", next_use_s=1.0), context("b", 5))
    engine.pins.on_hints(Hints("b", drop=True), now=0.5)
    engine.request(Hints(), context("other", 15))  # 10 were never used, and 5 more are needed
    assert engine.pool.cached(context("a", 5)) == 5
    assert engine.pool.cached(context("b", 5)) == 0


def test_the_end_of_a_session_keeps_what_others_use() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=100.0), context("a", 5, shared=3))
    engine.request(Hints("b", drop=True), context("b", 5, shared=3))
    assert engine.pins.counts.dropped_blocks == 2
    engine.request(Hints("a", drop=True, shared_tokens=3 * BLOCK), context("a", 5, shared=3))
    assert engine.pins.counts.dropped_blocks == 4


def test_a_request_that_is_never_continued_is_reused_first() -> None:
    engine = Engine()
    engine.request(Hints("a", next_use_s=100.0), context("a", 5))
    for each in range(8):
        engine.request(Hints(once=True), context(f"once-{each}", 5))
    assert engine.pool.cached(context("a", 5)) == 5


def test_a_dropped_block_that_a_request_found_again_is_kept() -> None:
    engine = Engine()
    engine.request(Hints("a", drop=True), context("a", 5))
    engine.request(Hints("b", next_use_s=1.0), context("a", 5))
    engine.pins.make_room(0, now=0.0)
    assert engine.pins.pinned_blocks == 5


HINTS = st.builds(
    Hints,
    session=st.sampled_from([None, "a", "b", "c", "d"]),
    next_use_s=st.none() | st.floats(0, 100),
    drop=st.booleans(),
    once=st.booleans(),
    shared_tokens=st.integers(0, 4 * BLOCK),
)
REQUESTS = st.tuples(HINTS, st.integers(1, 10), st.integers(0, 4), st.floats(0, 30), st.booleans())


@given(st.lists(REQUESTS, max_size=30))
@settings(deadline=None)
def test_no_sequence_of_hints_leaks_a_block_or_exceeds_the_bound(
    requests: list[tuple[Hints, int, int, float, bool]],
) -> None:
    engine, now = Engine(blocks=20, limits=PinLimits(max_fraction=0.5)), 0.0
    for hints, blocks, shared, seconds, is_update in requests:
        now += seconds
        if is_update:
            engine.pins.on_hints(hints, now)
        else:
            engine.request(hints, context(hints.session or f"at-{now}", blocks, min(shared, blocks)), now)
        assert engine.pins.pinned_blocks <= 10
        assert engine.pool.get_num_free_blocks() == 20 - engine.pins.pinned_blocks
        assert len(set(map(id, engine.pool.free_block_queue))) == engine.pool.get_num_free_blocks()
    engine.pins.clear()
    assert engine.pool.get_num_free_blocks() == 20


def test_a_context_that_an_exclusive_host_tier_has_needs_no_pin() -> None:
    engine = Engine()
    engine.request(Hints("a", 5.0), context("a", 4))
    assert engine.pins.pinned_of("a") == 4
    engine.pins.on_stored("a")
    assert engine.pins.pinned_of("a") == 0
    assert engine.pool.cached(context("a", 4)) == 4  # until somebody needs the blocks
    engine.pins.on_hints(Hints("a", 9.0), 1.0)
    assert engine.pins.pinned_of("a") == 0
    engine.request(Hints("a", 5.0), context("a", 5), now=2.0)
    assert engine.pins.pinned_of("a") == 5  # until the new context is stored


def test_a_session_that_has_returned_keeps_its_pin_when_its_last_context_was_stored() -> None:
    engine = Engine()
    engine.request(Hints("a", 5.0), context("a", 4))
    engine.pins.on_request("a")
    engine.pins.on_stored("a")
    assert engine.pins.pinned_of("a") == 4
